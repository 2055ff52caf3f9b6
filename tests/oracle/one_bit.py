"""1bit in NumPy, written from the papers and MXNet's rule, not from the C++ code.

Source: Karimireddy et al. 2019, algorithm 1, for the sign scaled by the mean; MXNet 2.0 for the threshold and the
packing; Bernstein et al. 2018 for the majority vote.
"""

from __future__ import annotations

import numpy as np
from oracle.two_bit import UNIT, lane_sum

Floats = np.ndarray  # float32, shape (n,)


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


def encode_mean(grad: Floats, residual: Floats) -> bytes:
    """The scaled form; residual is updated in place."""
    x, magnitude = x_of(grad, residual)
    levels = [
        np.float32(float(lane_sum(part)) / part.size)
        for part in np.split(magnitude, range(UNIT, x.size, UNIT))
    ]
    bits = x >= 0
    sent = np.where(bits, np.float32(1), np.float32(-1)) * np.repeat(np.array(levels, "<f4"), UNIT)[: x.size]
    residual[:] = x - sent
    return np.array(levels, "<f4").tobytes() + pack(bits)


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
