"""DynamiQ's mean of a tensor (2602.08923) in NumPy: an oracle of its algorithm to compare means with.

We have read its abstract and descriptions of it, not its code, which is not public. What they leave open is chosen
here, for the lowest error on Gaussian groups: the spacing of levels, and which statistic decides on a width.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

GROUP, SUPER_GROUP = 16, 256  # elements
WIDTHS = (2, 4, 8)  # bits of an element, the same in a super-group
_STEPS_UP = tuple(itertools.pairwise(WIDTHS))
_SPACING = {2: 0.0, 4: 0.1, 8: 0.007}  # each step between levels is that much longer than the one below it
_SCALE_BITS = 8  # of a group, as a share of its super-group's largest element
_SUPER_BITS = 16 + 2 * 16  # of a super-group: that element; the mean and the square that all agree on first
_BESIDE_CODES = _SCALE_BITS / GROUP + _SUPER_BITS / SUPER_GROUP  # bits of an element


class DynamiQ:
    """Makes the mean as a ring does: each hop decodes a sum, adds its own part and encodes it again.

    1. Workers agree on each super-group's mean, which is taken off, and on its square.
    2. A super-group has 2, 4 or 8 bits an element by its square, so many that the budget is kept.
    3. A group of 16 has a scale in 8 bits, and levels closer together near 0.
    4. Values go to one of the two nearest levels by chance. The workers' draws are correlated (Suresh et al. 2022):
       where one is rounded up the others are likelier rounded down. That lowers the error, and leaves a small bias, as
       what a hop rounds depends on the draws before it.

    Attributes:
        bits: sent and received by one worker so far.
    """

    def __init__(self, elements: int, key: int, *, budget: float) -> None:
        """budget: bits of an element in one direction, everything counted."""
        self.bits = 0.0
        self._elements = elements
        self._for_codes = budget - _BESIDE_CODES
        self._random = np.random.default_rng(key)

    def mean(self, given: Sequence[Floats], step: int) -> Floats:
        """Returns the mean that all workers get. given: each worker's (elements,). step: not used."""
        rows = np.stack([np.pad(own, (0, -own.size % SUPER_GROUP)) for own in given]).astype(np.float64)
        rows = rows.reshape(len(given), -1, SUPER_GROUP)
        centres = rows.mean((0, 2), keepdims=True)
        rows -= centres
        widths = self._widths((rows**2).sum((0, 2)))
        draws = self._draws(rows.shape)
        total = rows[0]
        for own, of_hop in zip(rows[1:], draws, strict=False):
            total = rounded(total, widths, of_hop) + own
        mean = rounded(total, widths, draws[-1]) / len(given) + centres[0]
        self.bits += 2 * SUPER_GROUP * float((widths + _BESIDE_CODES).sum())
        return np.ascontiguousarray(mean.reshape(-1)[: self._elements], dtype=np.float32)

    def _widths(self, squares: NDArray[np.float64]) -> NDArray[np.int64]:
        """The widths of least error: those whose step up saves most a bit go first, until the budget is spent."""
        gains = np.concatenate([squares * (4.0**-low - 4.0**-high) / (high - low) for low, high in _STEPS_UP])
        costs = np.repeat([high - low for low, high in _STEPS_UP], squares.size)
        # A lower step of a super-group gains more than its higher one, so it comes first.
        order = np.argsort(-gains, kind="stable")
        left = (self._for_codes - WIDTHS[0]) * squares.size
        taken = order[np.cumsum(costs[order]) <= left]
        widths = np.full(squares.size, WIDTHS[0])
        np.add.at(widths, taken % squares.size, costs[taken])
        return widths

    def _draws(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """One in [0, 1) for each hop and element; those of an element lie in different shares of that interval."""
        shares = np.argsort(self._random.random(shape), axis=0)
        return (shares + self._random.random(shape)) / shape[0]


def rounded(
    values: NDArray[np.float64], widths: NDArray[np.int64], draws: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What a payload stands for. values, draws: (super-groups, 256). widths: (super-groups,)."""
    result = np.zeros_like(values)
    for width in WIDTHS:
        chosen = widths == width
        groups = values[chosen].reshape(-1, SUPER_GROUP // GROUP, GROUP)
        largest = np.abs(groups).max((1, 2), keepdims=True)
        steps = 2**_SCALE_BITS - 1
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = np.ceil(np.abs(groups).max(2, keepdims=True) / largest * steps) / steps
            scales = np.nan_to_num(shares) * largest
            places = np.nan_to_num(np.abs(groups) / scales)
        levels = _levels(width)
        below = np.clip(np.searchsorted(levels, places, side="right") - 1, 0, levels.size - 2)
        low, high = levels[below], levels[below + 1]
        up = draws[chosen].reshape(groups.shape) < (places - low) / (high - low)
        result[chosen] = (np.where(up, high, low) * scales * np.sign(groups)).reshape(-1, SUPER_GROUP)
    return result


def _levels(width: int) -> NDArray[np.float64]:
    """From 0 to 1; with their negatives they are one fewer than 2**width."""
    steps = 2 ** (width - 1) - 1
    lengths = (1 + _SPACING[width]) ** np.arange(steps)
    return np.concatenate([[0.0], np.cumsum(lengths) / lengths.sum()])
