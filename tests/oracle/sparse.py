"""Codecs that send a part of the elements, in NumPy, written from the papers and not from the C++ code.

Source: Aji and Heafield 2017 and Lin et al. 2018 for the largest elements with a residual; Stich et al. 2018 for
drawn ones.
"""

from __future__ import annotations

import math

import numpy as np
from oracle import philox

Floats = np.ndarray  # float32, shape (n,)
UNIT = 65536


def count_of(ratio: float, m: int) -> int:
    """Elements sent of m."""
    return min(m, max(1, math.ceil(np.float32(ratio) * np.float32(m))))


def accumulate(grad: Floats, residual: Floats) -> Floats:
    """Adds grad to residual where the sum is finite; returns x, which is 0 elsewhere."""
    with np.errstate(invalid="ignore", over="ignore"):
        x = (residual + grad).astype(np.float32)
    finite = np.isfinite(x)
    residual[finite] = x[finite]
    return np.where(finite, x, np.float32(0))


def travelling(values: Floats, kind: str) -> np.ndarray:
    """Values as they are sent: float32, float16 (saturated) or the upper halves of float32, to nearest even."""
    if kind == "fp32":
        return values.astype("<f4")
    if kind == "fp16":
        return np.clip(values, -65504, 65504).astype("<f2")
    bits = values.view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype("<u2")


def arrived(sent: np.ndarray) -> Floats:
    """What travelling() stands for."""
    return (sent.astype(np.uint32) << 16).view(np.float32) if sent.dtype == np.uint16 else sent.astype("f4")


def encode_top_k(grad: Floats, residual: Floats, ratio: float, kind: str = "fp32") -> bytes:
    """Unit by unit the indices, ascending, then the values; residual is updated in place."""
    payload = b""
    for start in range(0, grad.size, UNIT):
        kept = residual[start : start + UNIT]
        x = accumulate(grad[start : start + UNIT], kept)
        order = np.argsort(-np.abs(x), kind="stable")
        indices = np.sort(order[: count_of(ratio, x.size)])
        values = travelling(x[indices], kind)
        kept[indices] -= arrived(values)
        payload += indices.astype("<u2").tobytes() + values.tobytes()
    return payload


def decode_top_k(payload: bytes, n: int, ratio: float, kind: str = "fp32") -> Floats:
    """What a payload of n elements stands for."""
    dtype = {"fp32": "<f4", "fp16": "<f2", "bf16": "<u2"}[kind]
    out, at = np.zeros(n, np.float32), 0
    for start in range(0, n, UNIT):
        count = count_of(ratio, min(UNIT, n - start))
        indices = np.frombuffer(payload, "<u2", count, at)
        values = np.frombuffer(payload, dtype, count, at + 2 * count)
        out[start + indices.astype(int)] = arrived(values)
        at += indices.nbytes + values.nbytes
    return out


def drawn(count: int, m: int, seed: int, key: int, step: int, unit: int) -> list[int]:
    """The first places of m elements after a shuffle: place i is swapped with one of those from i on."""
    places = list(range(m))
    for i in range(count):
        words = philox.draw((unit, key, step & 0xFFFFFFFF, i // 4), (seed, 1))
        other = i + (int(words[i % 4]) * (m - i) >> 32)
        places[i], places[other] = places[other], places[i]
    return places[:count]


def encode_random_k(
    grad: Floats,
    residual: Floats,
    ratio: float,
    seed: int,
    step: int,
    key: int,
    offset: int,
    kind: str = "fp32",
) -> bytes:
    """A header of step, key and unit, then the values as drawn; residual is updated in place."""
    payload = np.array([step], "<u8").tobytes() + np.array([key, offset // UNIT], "<u4").tobytes()
    for start in range(0, grad.size, UNIT):
        kept = residual[start : start + UNIT]
        x = accumulate(grad[start : start + UNIT], kept)
        places = drawn(count_of(ratio, x.size), x.size, seed, key, step, (offset + start) // UNIT)
        values = travelling(x[places], kind)
        kept[places] -= arrived(values)
        payload += values.tobytes()
    return payload
