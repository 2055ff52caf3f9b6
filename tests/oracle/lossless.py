"""Codes without their zeros in NumPy, written from compress/FORMAT.md and the papers, a bit at a time.

Sources: Elias 1974, "Efficient storage and retrieval by content and address of static files"; Fano 1971.
"""

from __future__ import annotations

import numpy as np
from oracle import two_bit

UNIT = 65536
RAW, BITMAP, POSITIONS = 0, 1, 2


def bits_of(numbers: list[int], width: int) -> list[int]:
    return [number >> bit & 1 for number in numbers for bit in range(width)]


def packed(*runs: list[int]) -> bytes:
    """Every run of bits in whole bytes, lowest bit first."""
    return b"".join(np.packbits(np.array(run, np.uint8), bitorder="little").tobytes() for run in runs)


def positions(at: list[int], negative: list[int], elements: int, low: int) -> bytes:
    """Elias and Fano: the upper parts as ones after so many zeros, then the lower parts, each after its sign."""
    unary = [0] * (len(at) + (elements - 1 >> low)) if at else []
    for index, position in enumerate(at):
        unary[(position >> low) + index] = 1
    fields = [(p & (1 << low) - 1) << 1 | n for p, n in zip(at, negative, strict=True)]
    return packed(unary, bits_of(fields, low + 1))


def encode_unit(codes: np.ndarray) -> bytes:
    """codes: int8 in {-1, 0, 1}."""
    at = np.flatnonzero(codes).tolist()
    negative = [int(codes[i] < 0) for i in at]
    forms = [(RAW, two_bit.pack(codes).tobytes()), (BITMAP, packed([int(c != 0) for c in codes], negative))]
    low = 0
    while codes.size >> low:
        forms.append((POSITIONS, positions(at, negative, codes.size, low)))
        low += 1
    form, body = min(forms, key=lambda candidate: len(candidate[1]))
    return np.uint32(form << 30 | (0 if form == RAW else len(at))).tobytes() + body


def encode(codes: np.ndarray) -> bytes:
    return b"".join(encode_unit(codes[start : start + UNIT]) for start in range(0, codes.size, UNIT))


def entropy(density: float) -> float:
    """Bits an element of independent elements sent with that probability, signs even."""
    rest = 1 - density
    return -sum(p * np.log2(p) for p in (density, rest) if p > 0) + density
