"""Natural compression in NumPy, written from the paper and not from the C++ code.

Source: Horvath et al. 2019, "Natural compression for distributed deep learning", section 2.1, equation 4: |x| between
2^a and 2^(a + 1) becomes the upper one with probability |x| / 2^a - 1. Ours: what is below the least normal number
of float32 becomes that or 0, and nothing becomes more than 2^127.
"""

from __future__ import annotations

import numpy as np
from oracle import philox

Floats = np.ndarray  # float32, shape (n,)
LEAST, MOST = 2.0**-126, 2.0**127


def power_of_two(x: Floats, chance: np.ndarray) -> Floats:
    """Rounds finite x; chance in [0, 1) is that of the upper power where it and the way there make up 1."""
    size = np.abs(x.astype(np.float64))
    fraction, exponent = np.frexp(
        np.maximum(size, LEAST)
    )  # size = fraction * 2^exponent, fraction in [0.5, 1)
    below = np.where(size < LEAST, 0.0, np.ldexp(1.0, exponent - 1))
    above = np.where(size < LEAST, LEAST, 2 * below)
    way = np.where(size < LEAST, size / LEAST, 2 * fraction - 1)
    rounded = np.minimum(np.where(way + chance >= 1, above, below), MOST)
    return np.copysign(rounded, x).astype(np.float32)


def encode(grad: Floats, residual: Floats, seed: int, **where: int) -> tuple[bytes, Floats]:
    """Returns the payload and what it stands for; residual is updated in place, but where x is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        x = (residual + grad).astype(np.float32)
    finite = np.isfinite(x)
    chance = (philox.words_of_elements(x.size, seed, **where) >> 9).astype(np.float64) * 2.0**-23
    sent = power_of_two(np.where(finite, x, np.float32(0)), chance)
    residual[finite] = (x - sent)[finite]
    exponents = np.where(sent == 0, 0, np.frexp(np.abs(sent))[1] + 126).astype(np.uint8)
    return exponents.tobytes() + np.packbits(np.signbit(sent), bitorder="little").tobytes(), sent
