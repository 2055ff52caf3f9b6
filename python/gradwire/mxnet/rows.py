"""MXNet's row_sparse arrays as gradwire's RowSparse, and back."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from gradwire.sparse import RowSparse

__all__ = ["distinct", "from_rows", "none", "to_rows"]


def to_rows(array: Any) -> RowSparse:
    """Returns an NDArray's rows, float32, as a copy; of a dense one those that are not zero. Waits for it."""
    sparse = array if array.stype == "row_sparse" else array.tostype("row_sparse")
    ids = sparse.indices.asnumpy().astype(np.int64)
    return RowSparse(ids, sparse.data.asnumpy().astype(np.float32, copy=False), array.shape)


def from_rows(row_ids: Any, rows: Any, shape: tuple[int, ...]) -> Any:
    """Returns a RowSparseNDArray of float32.

    Args:
        row_ids: int64 (n,), ascending, each once.
        rows: float32 (n, ...).
        shape: of the whole array.
    """
    if len(row_ids) == 0:
        return mx.nd.sparse.zeros("row_sparse", shape)
    return mx.nd.sparse.row_sparse_array(
        (mx.nd.array(rows), mx.nd.array(row_ids, dtype="int64")), shape=shape, dtype="float32"
    )


def none(shape: tuple[int, ...]) -> RowSparse:
    """Returns no row of an array of that shape."""
    return RowSparse([], [], shape)


def distinct(row_ids: Any) -> Any:
    """Returns ids that MXNet's scripts give as an NDArray of any shape and dtype: int64 (n,), ascending, each once."""
    return np.unique(row_ids.asnumpy().astype(np.int64).reshape(-1))
