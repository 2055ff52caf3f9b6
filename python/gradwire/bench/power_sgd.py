"""PowerSGD in `gradwire bench allreduce`: how the gradient is cut for it, what it sends, and whether a result is right.

Source: Vogels, Karimireddy, Jaggi: PowerSGD: Practical Low-Rank Gradient Compression, 2019, algorithms 1 and 2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradwire.bench import rounds

SIDE = 1000  # rows and columns of the matrices, as of a usual layer
DENSE_ROUNDS = 2  # the fewest that PyTorch's PowerSGD begins with
_DENSE_TOLERANCE = 1e-5
_TOLERANCE = 1e-3  # of products over a whole column in float32


def matrices(elements: int) -> tuple[int, int]:
    """Returns how the gradient is cut: so many square matrices, and their side; what is left is a vector, which
    PowerSGD does not compress."""
    side = min(SIDE, math.isqrt(elements))
    return elements // side**2, side


def encoded_bytes(elements: int) -> int:
    """Returns what one rank gives to all-reduces in one round at rank 1: a column and a row per matrix, the vector."""
    count, side = matrices(elements)
    return 4 * (2 * count * side + elements - count * side**2)


class Projections:
    """Checks means without repeating the algorithm: of each matrix M, the mean over the ranks of gradient and error, a
    round may return only p p' M for some unit column p, and what that left out stays in the error.

    Each rank checks every ranks-th matrix, and all of the vector.
    """

    def __init__(self, task: rounds.Task, rank: int) -> None:
        count, side = matrices(task.elements)
        own = [slice(i * side**2, (i + 1) * side**2) for i in range(rank, count, task.ranks)]
        mean = np.zeros(task.elements, dtype=np.float32)
        for other in range(task.ranks):
            mean += rounds.gradient(other, task.elements)
        mean /= np.float32(task.ranks)
        self._side = side
        self._vector = slice(count * side**2, task.elements)
        self._vector_mean = mean[self._vector].copy()
        self._means = [(cut, mean[cut].reshape(side, side).copy()) for cut in own]
        self._errors = [np.zeros((side, side), dtype=np.float32) for _ in own]
        self._round = 0

    def __call__(self, result: Any) -> bool:
        dense = self._round < DENSE_ROUNDS
        self._round += 1
        right = bool(np.allclose(result[self._vector], self._vector_mean, atol=_DENSE_TOLERANCE))
        for (cut, mean), error in zip(self._means, self._errors, strict=True):
            given = result[cut].reshape(self._side, self._side)
            wanted = mean if dense else _projected(mean + error, given)
            tolerance = _DENSE_TOLERANCE if dense else _TOLERANCE
            right = right and bool(np.allclose(given, wanted, rtol=tolerance, atol=tolerance))
            if not dense:
                error += mean - given
        return right


def _projected(matrix: Any, given: Any) -> Any:
    """Projects matrix on the longest column of given."""
    column = given[:, np.argmax(np.square(given).sum(axis=0))]
    column = column / np.linalg.norm(column)
    return np.outer(column, column @ matrix)
