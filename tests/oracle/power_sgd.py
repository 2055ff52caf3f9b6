"""PowerSGD in NumPy, for all workers at once, in double precision: written from the paper and not from the package.

Source: Vogels, Karimireddy, Jaggi 2019, algorithms 1 and 2, without momentum.
"""

from __future__ import annotations

import numpy as np

Matrix = np.ndarray  # float64, shape (n, m)


def orthogonalise(p: Matrix) -> Matrix:
    """Gram and Schmidt's way, as in the paper."""
    result = p.copy()
    for column in range(result.shape[1]):
        for before in range(column):
            result[:, column] -= (result[:, before] @ result[:, column]) * result[:, before]
        result[:, column] /= np.linalg.norm(result[:, column])
    return result


def step(gradients: list[Matrix], errors: list[Matrix], q: Matrix) -> tuple[Matrix, list[Matrix], Matrix]:
    """Returns what every worker gets, the workers' new errors, and the q that the next step starts from."""
    wanted = [g + e for g, e in zip(gradients, errors, strict=True)]
    p = np.mean([m @ q for m in wanted], axis=0)
    p = orthogonalise(p)
    q = np.mean([m.T @ p for m in wanted], axis=0)
    result = p @ q.T
    return result, [m - result for m in wanted], q
