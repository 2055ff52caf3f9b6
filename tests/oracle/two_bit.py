"""The 2-bit codec in NumPy, written from the rule and not from the C++ code.

Source: MXNet 1.0-1.9.1 gradient compression for fixed thresholds; compress/FORMAT.md for agreed scales.
"""

from __future__ import annotations

import numpy as np

UNIT = 65536  # elements that share one agreed scale
BLOCK = 1024  # elements that are summed by themselves
LANES = 64

Floats = np.ndarray  # float32, shape (n,)
Codes = np.ndarray  # int8 in {-1, 0, 1}, shape (n,)


def quantise(x: Floats, threshold: float, level: float) -> tuple[Codes, Floats]:
    """Returns the code of every element and what stays behind. x is gradient + residual."""
    t, v = np.float32(threshold), np.float32(level)
    with np.errstate(invalid="ignore"):
        codes = np.where(x >= t, 1, np.where(x <= -t, -1, 0)).astype(np.int8)
        kept = np.where(codes == 1, x - v, np.where(codes == -1, x + v, x)).astype(np.float32)
    return codes, kept


def pack(codes: Codes) -> np.ndarray:
    """Packs 4 codes a byte, element 0 in bits 7:6; 11 is +1, 10 is -1; padded to 4 bytes. Returns uint8."""
    padded = np.zeros((codes.size + 15) // 16 * 16, np.uint8)
    padded[: codes.size] = np.select([codes == 1, codes == -1], [3, 2], 0)
    quads = padded.reshape(-1, 4)
    return (quads[:, 0] << 6 | quads[:, 1] << 4 | quads[:, 2] << 2 | quads[:, 3]).astype(np.uint8)


def unpack(packed: np.ndarray, n: int) -> Codes:
    """Reads what pack() wrote; 01 is 0."""
    fields = (packed[:, None] >> np.array([6, 4, 2, 0], np.uint8) & 3).reshape(-1)[:n]
    return np.select([fields == 3, fields == 2], [1, -1], 0).astype(np.int8)


def encode(grad: Floats, residual: Floats, threshold: float, nonfinite: str = "skip") -> np.ndarray:
    """Encodes with a fixed threshold; residual is updated in place. Returns the payload."""
    with np.errstate(invalid="ignore", over="ignore"):
        x = (residual + grad).astype(np.float32)
    codes, kept = quantise(x, threshold, threshold)
    if nonfinite == "skip":
        bad = ~np.isfinite(x)
        codes[bad] = 0
        kept[bad] = residual[bad]
    residual[:] = kept
    return pack(codes)


def decode_sum(payloads: list[np.ndarray], n: int, level: float) -> Floats:
    """Adds the codes as integers and multiplies once: fl(k * level)."""
    k = sum(unpack(payload, n).astype(np.int32) for payload in payloads)
    return k.astype(np.float32) * np.float32(level)


def planes(payloads: list[np.ndarray], n: int) -> np.ndarray:
    """The body of an exact reply: k + ways in bit planes of 64 elements. Returns uint8."""
    ways = len(payloads)
    bits = int(np.ceil(np.log2(2 * ways + 1)))
    counts = np.zeros((n + 63) // 64 * 64, np.uint32)
    counts[:n] = sum(unpack(payload, n).astype(np.int32) for payload in payloads) + ways
    groups = counts.reshape(-1, 64)
    words = [np.packbits(groups >> j & 1, axis=1, bitorder="little") for j in range(bits)]
    return np.stack(words, axis=1).astype(np.uint8).reshape(-1)


def round_to_8_bits(value: float) -> np.float32:
    """Rounds a number >= 0 to 8 significant bits, ties to even, saturating."""
    bits = int(np.float32(min(value, np.finfo(np.float32).max)).view(np.uint32))
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return np.uint32(min(rounded, 0x7F7F0000)).view(np.float32)


def fold(values: Floats) -> Floats:
    """Adds the upper half of the last axis to the lower one until one is left."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[..., :half] + values[..., half:]
    return values[..., 0]


def lane_sum(values: Floats) -> np.float32:
    """Sums at most a unit in the written order: in a block of 1024, element i to lane i % 64 in order of i; lanes fold,
    then blocks.
    """
    padded = np.zeros(UNIT, np.float32)
    padded[: values.size] = values
    blocks = padded.reshape(UNIT // BLOCK, BLOCK // LANES, LANES)
    lanes = np.zeros((UNIT // BLOCK, LANES), np.float32)
    with np.errstate(over="ignore"):
        for row in range(BLOCK // LANES):
            lanes = lanes + blocks[:, row]
        return min(fold(fold(lanes)), np.finfo(np.float32).max)


def encode_auto(
    grad: Floats, residual: Floats, scales: list[tuple[float, float]] | None, scale: float = 1.5
) -> bytes:
    """Encodes with (threshold, level) per unit; None is the dense first round. Residual in place."""
    with np.errstate(invalid="ignore", over="ignore"):
        x = (residual + grad).astype(np.float32)
    finite = np.isfinite(x)
    magnitude = np.where(finite, np.abs(x), np.float32(0))
    headers, codes = [], np.zeros(x.size, np.int8)
    for u, start in enumerate(range(0, x.size, UNIT)):
        unit = slice(start, min(start + UNIT, x.size))
        total = lane_sum(magnitude[unit])
        if scales is None:
            level = 0.0
            threshold = float(
                round_to_8_bits(float(np.float32(scale)) * (float(total) / (unit.stop - start)))
            )
            chosen = finite[unit] & (magnitude[unit] >= np.float32(threshold)) & (threshold > 0)
        else:
            threshold, level = scales[u]
            chosen = finite[unit] & (magnitude[unit] >= np.float32(threshold)) & (level > 0)
            codes[unit] = np.where(chosen, np.where(x[unit] >= np.float32(threshold), 1, -1), 0)
        selected = lane_sum(np.where(chosen, magnitude[unit], np.float32(0)))
        headers.append(
            np.array([level, total, selected], "<f4").tobytes() + np.uint32(chosen.sum()).tobytes()
        )
    head = np.array([0 if scales is None else 1, len(headers)], "<u4").tobytes() + b"".join(headers)
    if scales is None:
        residual[finite] = 0
        return head + np.where(finite, x, np.float32(0)).astype("<f4").tobytes()
    level_of = np.repeat(np.array([s[1] for s in scales], np.float32), UNIT)[: x.size]
    residual[finite] = (x - codes.astype(np.float32) * level_of)[finite]
    return head + pack(codes).tobytes()


def agreed_scale(units: list[tuple[float, float, int]], n: int, scale: float = 1.5) -> tuple[float, float]:
    """Next (threshold, level) of a unit of n elements from every rank's (sum, sum of sent, count of sent)."""
    total = sum(float(u[0]) for u in units)
    selected = sum(float(u[1]) for u in units)
    count = sum(u[2] for u in units)
    mean, sent = total / (len(units) * n), selected / max(1, count)
    if total * mean > 4 * (selected * sent):
        threshold, level = float(np.float32(min(scale, 0.5))) * mean, float(round_to_8_bits(mean))
        threshold = float(round_to_8_bits(threshold))
    else:
        level = float(round_to_8_bits(sent))
        threshold = max(float(round_to_8_bits(float(np.float32(scale)) * mean)), level / 2)
    return (threshold, level) if threshold > 0 and level > 0 else (0.0, 0.0)


def encode_auto_reply(
    payloads: list[bytes], n: int, residual: Floats, scale: float = 1.5, reply_scale: float = 1.5
) -> bytes:
    """The own-name reply to payloads in codes; the server's residual is updated in place."""
    units = (n + UNIT - 1) // UNIT
    heads = [np.frombuffer(p, "<f4", 4 * units, 8).reshape(units, 4) for p in payloads]
    counts = [np.frombuffer(p, "<u4", 4 * units, 8).reshape(units, 4)[:, 3] for p in payloads]
    codes = sum(unpack(np.frombuffer(p, np.uint8, -1, 8 + 16 * units), n).astype(np.int32) for p in payloads)
    headers, sent = [], np.zeros(n, np.int8)
    for u, start in enumerate(range(0, n, UNIT)):
        run = slice(start, min(start + UNIT, n))
        length = run.stop - start
        sums = [(h[u, 1], h[u, 2], int(c[u])) for h, c in zip(heads, counts, strict=True)]
        threshold, level = agreed_scale(sums, length, scale)
        x = (residual[run] + codes[run].astype(np.float32) * heads[0][u, 0]).astype(np.float32)
        total = float(lane_sum(np.abs(x)))
        bound = round_to_8_bits(float(np.float32(reply_scale)) * (total / length))
        chosen = (np.abs(x) >= bound) & (bound > 0)
        selected = lane_sum(np.where(chosen, np.abs(x), np.float32(0)))
        own = agreed_scale([(total, float(selected), int(chosen.sum()))], length, reply_scale)
        if own[1] > 0:
            sent[run], residual[run] = quantise(x, own[0], own[1])
        else:
            residual[run] = x
        headers.append(np.array([threshold, level, own[1], 0], "<f4").tobytes())
    return np.array([1, units], "<u4").tobytes() + b"".join(headers) + pack(sent).tobytes()
