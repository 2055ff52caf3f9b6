"""1bit in NumPy, written from the papers and MXNet's rule, not from the C++ code.

Source: Karimireddy et al. 2019, algorithm 1, for the sign scaled by the mean; MXNet 2.0 for the threshold and the
packing; Bernstein et al. 2018 for the majority vote.
"""

from __future__ import annotations

import numpy as np
from oracle.two_bit import UNIT, lane_sum

Floats = np.ndarray  # float32, shape (n,)
ZERO_WORD = bytes.fromhex("9e3779b9")


def pack(bits: np.ndarray) -> bytes:
    """Packs 8 a byte, the first in the most significant bit, in whole words of 32."""
    padded = np.zeros((bits.size + 31) // 32 * 32, bool)
    padded[: bits.size] = bits
    return np.packbits(padded).tobytes()


def signs(packed: bytes, n: int) -> Floats:
    """+1 or -1 for every bit."""
    return np.unpackbits(np.frombuffer(packed, np.uint8))[:n].astype(np.float32) * 2 - 1


def x_of(grad: Floats, residual: Floats) -> tuple[Floats, Floats]:
    """What is encoded, and |x| with what was not finite as 0: such a gradient counts as 0."""
    with np.errstate(invalid="ignore", over="ignore"):
        x = (residual + grad).astype(np.float32)
    finite = np.isfinite(x)
    return np.where(finite, x, residual), np.where(finite, np.abs(x), np.float32(0))


def words(values: np.ndarray) -> np.ndarray:
    """Values by words of 32, absent ones 0: shape (words, 32)."""
    padded = np.zeros((values.size + 31) // 32 * 32, values.dtype)
    padded[: values.size] = values
    return padded.reshape(-1, 32)


def encode_mean(grad: Floats, residual: Floats) -> bytes:
    """The scaled form; residual is updated in place. A word of 32 zeros is ZERO_WORD, and has no part in the mean."""
    x, magnitude = x_of(grad, residual)
    is_sent = np.repeat(words(x).any(axis=1), 32)[: x.size]
    levels = []
    for start in range(0, x.size, UNIT):
        sent = int(is_sent[start : start + UNIT].sum())
        total = float(lane_sum(magnitude[start : start + UNIT]))
        levels.append(np.float32(total / sent) if sent else np.float32(0))
    packed = np.frombuffer(pack(x >= 0), np.uint8).reshape(-1, 4).copy()
    packed[(packed == np.frombuffer(ZERO_WORD, np.uint8)).all(axis=1), 0] ^= 0x80
    bits = np.unpackbits(packed)[: x.size] == 1
    packed[~words(x).any(axis=1)] = np.frombuffer(ZERO_WORD, np.uint8)
    level_of = np.repeat(np.array(levels, "<f4"), UNIT)[: x.size]
    residual[:] = np.where(is_sent, x - np.where(bits, level_of, -level_of), x)
    return np.array(levels, "<f4").tobytes() + packed.tobytes()


def decode_mean(payload: bytes, n: int) -> Floats:
    """What a payload of the scaled form stands for."""
    units = (n + UNIT - 1) // UNIT
    levels = np.repeat(np.frombuffer(payload, "<f4", units), UNIT)[:n]
    packed = np.frombuffer(payload, np.uint8, -1, 4 * units).reshape(-1, 4)
    is_zero = np.repeat((packed == np.frombuffer(ZERO_WORD, np.uint8)).all(axis=1), 32)[:n]
    return np.where(is_zero, np.float32(0), signs(packed.tobytes(), n) * levels)


def encode_votes(grad: Floats, residual: Floats, threshold: float) -> bytes:
    """MXNet 2.0's form; residual is updated in place."""
    x, _ = x_of(grad, residual)
    bits = x > np.float32(threshold)
    residual[:] = x - np.where(bits, np.float32(1), np.float32(-1))
    return pack(bits)


def planes(payloads: list[bytes], n: int) -> bytes:
    """The exact reply: counts of ones, 64 elements a group, one word of 64 bits for each bit of a count."""
    bits = int(np.ceil(np.log2(len(payloads) + 1)))
    counts = np.zeros((n + 63) // 64 * 64, np.uint32)
    for payload in payloads:
        counts[:n] += signs(payload, n) > 0
    groups = counts.reshape(-1, 64)
    words = [np.packbits(groups >> j & 1, axis=1, bitorder="little") for j in range(bits)]
    return np.stack(words, axis=1).astype(np.uint8).tobytes()
