"""TernGrad in NumPy, written from the paper and not from the C++ code.

Source: Wen et al. 2017, "TernGrad", equations 1 to 3 for the codes, 5 for clipping. Ours: a scale per 65 536 elements,
deviations around 0, the order in which squares are added.
"""

from __future__ import annotations

import numpy as np
from oracle import philox, two_bit

Floats = np.ndarray  # float32, shape (n,)
LANES = 16


def deviation(x: Floats) -> float:
    """The root of the mean square; element i in lane i mod 16, lanes folded in halves."""
    padded = np.zeros(-(-x.size // LANES) * LANES)
    padded[: x.size] = np.square(x.astype(np.float64))
    lanes = np.add.accumulate(padded.reshape(-1, LANES), axis=0)[-1]
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return float(np.sqrt(lanes[0] / x.size))


def scale_of(x: Floats, clip: float | None) -> np.float32:
    """s of one unit: the largest |x|, clipped."""
    most = float(np.abs(x).max())
    scale = np.float32(most if clip is None else min(most, clip * deviation(x)))
    return scale if scale >= np.finfo(np.float32).tiny else np.float32(0)


def encode(
    grad: Floats, residual: Floats, clip: float | None, seed: int, **where: int
) -> tuple[bytes, Floats]:
    """Returns the payload and what it stands for; residual is updated in place, but where x is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        x = (residual + grad).astype(np.float32)
    finite = np.isfinite(x)
    known = np.where(finite, x, np.float32(0))
    units = np.split(known, range(two_bit.UNIT, x.size, two_bit.UNIT))
    scales = np.array([scale_of(unit, clip) for unit in units], "<f4")
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    with np.errstate(over="ignore"):
        probability = np.abs(known) * np.repeat(inverse, two_bit.UNIT)[: x.size]
    sent = philox.uniforms_of_elements(x.size, seed, **where) < probability
    codes = (np.sign(known) * sent).astype(np.int8)
    values = codes.astype(np.float32) * np.repeat(scales, two_bit.UNIT)[: x.size]
    residual[finite] = (x - values)[finite]
    return scales.tobytes() + two_bit.pack(codes).tobytes(), values
