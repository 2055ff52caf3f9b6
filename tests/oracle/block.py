"""Codes with a scale per block in NumPy, written from the papers and not from the C++ code.

Source: QSGD (Alistarh et al. 2017, section 4) for the buckets, CGX (Markov et al. 2022, section 4) for their use
without chance; Micikevicius et al. 2022, table 1, for fp8; NormalFloat in 2 bits (Dettmers et al. 2023, QLoRA, in the
form of Li et al. 2023, LoftQ) for nf2's levels. Ours: what a scale may be at most and at least, nf2's scale, and nf4's
levels.
"""

from __future__ import annotations

import numpy as np
from oracle import philox

Floats = np.ndarray  # float32, shape (n,)
LARGEST = {"int8": 127, "int4": 7, "e4m3": 448, "e5m2": 57344}
FRACTION_BITS = {"e4m3": 3, "e5m2": 2}


def float8_values(name: str) -> np.ndarray:
    """The value of every non-negative 8-bit float from the definition of the format, in order. Float64."""
    fraction = FRACTION_BITS[name]
    bias = (1 << (6 - fraction)) - 1
    exponent, mantissa = np.divmod(np.arange(128), 1 << fraction)
    normal = np.ldexp((1 << fraction) + mantissa.astype(float), exponent - bias - fraction)
    subnormal = np.ldexp(mantissa.astype(float), 1 - bias - fraction)
    return np.where(exponent == 0, subnormal, normal)


def float8(scaled: Floats, name: str) -> np.ndarray:
    """Rounds to the nearest 8-bit float, ties to the even code, saturating. Returns uint8."""
    values = float8_values(name)[: list(float8_values(name)).index(LARGEST[name]) + 1]
    magnitude = np.minimum(np.abs(scaled.astype(float)), LARGEST[name])
    below = np.clip(np.searchsorted(values, magnitude, "right") - 1, 0, values.size - 2)
    left, right = magnitude - values[below], values[below + 1] - magnitude
    up = (right < left) | ((right == left) & (below % 2 == 1))
    return (below + up + 128 * np.signbit(scaled)).astype(np.uint8)


def values_of(codes: np.ndarray, name: str) -> Floats:
    """What codes (uint8 or int8) stand for before they are scaled."""
    if name in FRACTION_BITS:
        values = float8_values(name)[codes & 127]
        return np.where(codes & 128, -values, values).astype(np.float32)
    return codes.astype(np.float32)


def scale_of(most: np.float32, largest: float) -> np.float32:
    """The largest |x| of a block becomes the largest code; 0 where the scale would be subnormal."""
    scale = np.float32(most) / np.float32(largest)
    if scale < np.finfo(np.float32).tiny:
        return np.float32(0)
    return min(scale, np.float32(float.fromhex("0x1.fffffcp127")) / np.float32(largest))


def bfloat16(value: np.float32) -> np.float32:
    """The nearest bfloat16, ties to even."""
    bits = int(np.float32(value).view(np.uint32))
    return np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).view(np.float32)


def sum_in_lanes(values: Floats) -> np.float32:
    """A float32 sum: element i goes to lane i % 64 in order, then halves of the lanes are added."""
    lanes = np.zeros(64, np.float32)
    with np.errstate(over="ignore"):
        for row in np.pad(values, (0, -values.size % 64)).reshape(-1, 64):
            lanes = lanes + row
        while lanes.size > 1:
            lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return lanes[0]


def nf2_scale(part: Floats) -> np.float32:
    """The scale of least squares if elements above 1.5 times the mean |x| become 4, as a bfloat16.

    At least a 16th of the largest |x|; 0 where it is subnormal.
    """
    size, of = np.abs(part), np.float32
    with np.errstate(over="ignore"):
        total = sum_in_lanes(size)
        large = np.where(size > of(1.5) * (total / of(part.size)), size, of(0))
        fitted = (total + of(3) * sum_in_lanes(large)) / of(part.size + 15 * np.count_nonzero(large))
    most = of(float.fromhex("0x1.fep125"))  # 4 times this is finite
    scale = bfloat16(min(max(fitted, size.max() / of(16)), most))
    return scale if scale >= np.finfo(np.float32).tiny else of(0)


def encode_nf2(grad: Floats, residual: Floats, block: int) -> bytes:
    """Encodes residual + grad; residual in place. What is not finite counts as 0."""
    with np.errstate(invalid="ignore", over="ignore"):
        x = (residual + grad).astype(np.float32)
    x = np.where(np.isfinite(x), x, np.where(np.isfinite(residual), residual, np.float32(0)))
    scales = np.array([nf2_scale(x[b : b + block]) for b in range(0, x.size, block)], np.float32)
    of_each = np.repeat(scales, block)[: x.size]
    inverse = np.divide(np.float32(1), of_each, out=np.zeros_like(of_each), where=of_each > 0)
    scaled = x * inverse
    codes = (np.signbit(scaled).astype(np.uint8) << 1) | (np.abs(scaled) >= 2.5)
    residual[:] = x - nf2_values(codes) * of_each
    four = np.pad(codes, (0, -codes.size % 4)).reshape(-1, 4)
    packed = (four << np.uint8([0, 2, 4, 6])).sum(1).astype(np.uint8)
    return (scales.view(np.uint32) >> 16).astype("<u2").tobytes() + packed.tobytes()


def nf2_values(codes: np.ndarray) -> Floats:
    """What codes of 2 bits stand for before they are scaled."""
    return np.float32([1, 4, -1, -4])[codes]


def decode_nf2(payload: bytes, n: int, block: int) -> Floats:
    """What a payload of n elements stands for."""
    blocks = -(-n // block)
    scales = (np.frombuffer(payload, "<u2", blocks).astype(np.uint32) << 16).view(np.float32)
    packed = np.frombuffer(payload, np.uint8, offset=2 * blocks)
    codes = (packed[:, None] >> np.uint8([0, 2, 4, 6]) & 3).reshape(-1)[:n]
    return nf2_values(codes) * np.repeat(scales, block)[:n]


NF4_LEVELS = np.int8([0, 9, 18, 29, 42, 55, 71, 91, 119, -118, -88, -66, -49, -34, -21, -10])  # by code


def nf4_codes(q: np.ndarray) -> np.ndarray:
    """The code of the level nearest to each integer, of two the upper one."""
    levels = NF4_LEVELS.astype(float)
    off = np.abs(levels - q[:, None])
    nearest = np.where(off == off.min(1, keepdims=True), levels, -np.inf)
    return nearest.argmax(1).astype(np.int8)


def encode_nf4(grad: Floats, residual: Floats, block: int) -> bytes:
    """Encodes residual + grad; residual in place, but where x is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        x = (residual + grad).astype(np.float32)
    finite = np.isfinite(x)
    sendable = np.where(finite, x, np.float32(0))
    starts = range(0, x.size, block)
    scales = np.array([bfloat16(scale_of(np.abs(sendable[b : b + block]).max(), 127)) for b in starts], "f4")
    of_each = np.repeat(scales, block)[: x.size]
    inverse = np.divide(np.float32(1), of_each, out=np.zeros_like(of_each), where=of_each > 0)
    codes = nf4_codes(np.rint(sendable * inverse))
    residual[finite] = (x - NF4_LEVELS[codes].astype(np.float32) * of_each)[finite]
    return (scales.view(np.uint32) >> 16).astype("<u2").tobytes() + pack(codes, "int4")


def decode_nf4(payload: bytes, n: int, block: int) -> Floats:
    """What a payload of n elements stands for."""
    blocks = -(-n // block)
    scales = (np.frombuffer(payload, "<u2", blocks).astype(np.uint32) << 16).view(np.float32)
    packed = np.frombuffer(payload, np.uint8, offset=2 * blocks)
    codes = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)[:n]
    return NF4_LEVELS[codes].astype(np.float32) * np.repeat(scales, block)[:n]


def quantise(x: Floats, block: int, name: str) -> tuple[np.ndarray, Floats]:
    """Returns the code of every element and the scale of every block; x is finite."""
    largest = LARGEST[name]
    codes, scales = np.zeros(x.size, np.uint8 if name in FRACTION_BITS else np.int8), []
    for start in range(0, x.size, block):
        part = x[start : start + block]
        scale = scale_of(np.abs(part).max(), largest)
        scales.append(scale)
        scaled = part * (np.float32(1) / scale if scale > 0 else np.float32(0))
        rounded = float8(scaled, name) if name in FRACTION_BITS else np.rint(scaled)
        codes[start : start + block] = rounded
    return codes, np.array(scales, "<f4")


def pack(codes: np.ndarray, name: str) -> bytes:
    """Bytes of the codes: one each, but int4 two a byte, the even element in the lower half."""
    if name != "int4":
        return codes.tobytes()
    halves = np.append(codes, np.zeros(codes.size % 2, np.int8)).view(np.uint8) & 15
    return (halves[0::2] | halves[1::2] << 4).tobytes()


def encode(grad: Floats, residual: Floats, name: str, block: int) -> bytes:
    """Encodes residual + grad; residual is updated in place, but where x is not finite. Returns the payload."""
    with np.errstate(invalid="ignore", over="ignore"):
        x = (residual + grad).astype(np.float32)
    finite = np.isfinite(x)
    codes, scales = quantise(np.where(finite, x, np.float32(0)), block, name)
    sent = values_of(codes, name) * np.repeat(scales, block)[: x.size]
    residual[finite] = (x - sent)[finite]
    return scales.tobytes() + pack(codes, name)


def decode(payload: bytes, n: int, name: str, block: int) -> Floats:
    """What a payload of n elements stands for."""
    blocks = -(-n // block)
    scales = np.frombuffer(payload, "<f4", blocks)
    raw = np.frombuffer(payload, np.uint8, offset=4 * blocks)
    if name == "int4":
        raw = np.stack([raw & 15, raw >> 4], axis=1).reshape(-1)[:n]
        codes = (raw.astype(np.int8) ^ 8) - 8
    else:
        codes = raw if name in FRACTION_BITS else raw.view(np.int8)
    return values_of(codes, name) * np.repeat(scales, block)[:n]


def encode_qsgd(grad: Floats, residual: Floats, bits: int, bucket: int, seed: int, **where: int) -> bytes:
    """QSGD (Alistarh et al. 2017, section 3.1) in buckets scaled by their maximum; residual in place."""
    name = {4: "int4", 8: "int8"}[bits]
    with np.errstate(invalid="ignore", over="ignore"):
        x = (residual + grad).astype(np.float32)
    finite = np.isfinite(x)
    x = np.where(finite, x, np.float32(0))
    scales = np.array(
        [scale_of(np.abs(x[b : b + bucket]).max(), LARGEST[name]) for b in range(0, x.size, bucket)]
    )
    scales = scales.astype("<f4")
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    a = np.abs(x * np.repeat(inverse, bucket)[: x.size])
    level = np.floor(a)
    level += philox.uniforms_of_elements(x.size, seed, **where) < a - level
    codes = (np.sign(x) * np.minimum(level, LARGEST[name])).astype(np.int8)
    sent = codes.astype(np.float32) * np.repeat(scales, bucket)[: x.size]
    residual[finite] = (x - sent)[finite]
    return scales.tobytes() + pack(codes, name)
