"""Philox4x32-10 from Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", table 2 and figure 4."""

from __future__ import annotations

import numpy as np

Words = np.ndarray  # uint64 that hold 32 bits, any shape


def draw(counter: tuple[Words | int, ...], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Four random words for each counter of four words."""
    low = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    k0, k1 = (int(word) for word in key)
    for _ in range(10):
        product0, product1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (product1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            product1 & low,
            (product0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            product0 & low,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def words_of_elements(n: int, seed: int, key: int, rank: int, step: int, offset: int) -> Words:
    """The word that each of n elements of a tensor draws: 64 elements from 16 counters, word by word. uint64 (n,)."""
    e = np.arange(offset, offset + n, dtype=np.uint64)
    counter = (e // 64 * 16 + e % 16) & 0xFFFFFFFF
    words = np.stack(draw((counter, key, step & 0xFFFFFFFF, rank), (seed, 0)))
    return words[e % 64 // 16, np.arange(n)]


def uniforms_of_elements(n: int, seed: int, **where: int) -> np.ndarray:
    """Their upper 24 bits as numbers in [0, 1). float32 (n,)."""
    return (words_of_elements(n, seed, **where) >> 8).astype(np.float32) * np.float32(2.0**-24)
