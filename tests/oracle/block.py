"""Codes with a scale per block in NumPy, written from the papers and not from the C++ code.

Source: Alistarh et al. 2017 (QSGD, section 4: buckets), Dettmers et al. 2022 (block-wise quantisation), CGX
(Markov et al. 2022, section 4). Ours: what a scale may be at most and at least.
"""

from __future__ import annotations

import numpy as np

Floats = np.ndarray  # float32, shape (n,)
LARGEST = {"int8": 127, "int4": 7}


def scale_of(most: np.float32, largest: float) -> np.float32:
    """The largest |x| of a block becomes the largest code; 0 where the scale would be subnormal."""
    scale = np.float32(most) / np.float32(largest)
    if scale < np.finfo(np.float32).tiny:
        return np.float32(0)
    return min(scale, np.float32(float.fromhex("0x1.fffffcp127")) / np.float32(largest))


def quantise(x: Floats, block: int, largest: float) -> tuple[np.ndarray, Floats]:
    """Returns the integer of every element and the scale of every block; x is finite."""
    codes, scales = np.zeros(x.size, np.int8), []
    for start in range(0, x.size, block):
        part = x[start : start + block]
        scale = scale_of(np.abs(part).max(), largest)
        scales.append(scale)
        if scale > 0:
            codes[start : start + block] = np.rint(part * (np.float32(1) / scale))
    return codes, np.array(scales, "<f4")


def pack(codes: np.ndarray, name: str) -> bytes:
    """Bytes of the codes: int8 as they are, int4 two a byte, the even element in the lower half."""
    if name == "int8":
        return codes.tobytes()
    halves = np.append(codes, np.zeros(codes.size % 2, np.int8)).view(np.uint8) & 15
    return (halves[0::2] | halves[1::2] << 4).tobytes()


def encode(grad: Floats, residual: Floats, name: str, block: int) -> bytes:
    """Encodes residual + grad; residual is updated in place, but where x is not finite. Returns the payload."""
    with np.errstate(invalid="ignore", over="ignore"):
        x = (residual + grad).astype(np.float32)
    finite = np.isfinite(x)
    codes, scales = quantise(np.where(finite, x, np.float32(0)), block, LARGEST[name])
    sent = codes.astype(np.float32) * np.repeat(scales, block)[: x.size]
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
        codes = raw.view(np.int8)
    return codes.astype(np.float32) * np.repeat(scales, block)[:n]
