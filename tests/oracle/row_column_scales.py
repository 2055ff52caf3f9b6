"""Scales of rows and columns in NumPy, in float64.

Source: Shazeer and Stern 2018, "Adafactor: adaptive learning rates with sublinear memory cost", algorithm 1: R and C
are running means of the rows' and the columns' squares, and V = R C / mean(R). Here V is relative to its mean, and a
floor is added to rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Floats = np.ndarray


def scales(means: Sequence[Floats], decay: float = 0.999, floor: float = 0.03) -> Floats:
    """What the next gradient is divided by, after these mean gradients of shape (rows, columns); float64."""
    if not means:
        return np.float64(1)
    rows, columns = np.zeros(means[0].shape[0]), np.zeros(means[0].shape[1])
    for mean in means:
        squares = np.square(mean, dtype=np.float64)
        rows = decay * rows + (1 - decay) * squares.mean(1)
        columns = decay * columns + (1 - decay) * squares.mean(0)
    share = floor * floor
    relative = [(each / rows.mean() + share) / (1 + share) for each in (rows, columns)]
    return np.sqrt(np.outer(*relative))


def delivered(codec: Any, gradients: Sequence[Sequence[Floats]]) -> list[Floats]:
    """What workers get back of their gradients, step by step, through a codec that agrees on no scales and answers in
    float32: each worker's over the scales, with error feedback in that form, and the mean times the scales.

    Args:
        gradients: of each step, of each worker, (rows, columns).
    """
    means: list[Floats] = []
    residuals = [np.zeros(own.size, np.float32) for own in gradients[0]]
    for step in gradients:
        by, total = scales(means), np.zeros(step[0].size)
        for own, residual in zip(step, residuals, strict=True):
            sent = codec.encode((own / by).astype(np.float32).reshape(-1), residual=residual)
            total += codec.decode(sent, own.size)
        means.append(total.reshape(step[0].shape) / len(step) * by)
    return means
