"""Which rows of an alltoall are whose."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradwire.horovod.negotiation import Response
from gradwire.horovod.process_sets import ProcessSet


def rows_for_each(rows: int, splits: Any, process_set: ProcessSet) -> tuple[int, ...]:
    """Returns how many rows each member gets.

    Args:
        rows: that there are.
        splits: rows for each member, whole numbers of NumPy's, (members,); None: as many for each.

    Raises: ValueError: that cannot be.
    """
    members = len(process_set.members())
    if splits is None:
        if rows % members:
            raise ValueError(
                f"hvd.alltoall: {rows} rows cannot be split evenly among {members} members; give splits"
            )
        return (rows // members,) * members
    if splits.dtype not in (np.int32, np.int64) or splits.shape != (members,):
        raise ValueError(
            f"hvd.alltoall: splits is {splits.dtype} of shape {splits.shape}, expected int32 of shape ({members},)"
        )
    counts = tuple(int(count) for count in splits)
    if min(counts) < 0 or sum(counts) > rows:
        raise ValueError(
            f"hvd.alltoall: splits {counts} do not fit {rows} rows; give 0 or more, {rows} in all"
        )
    return counts


def received_rows(response: Response, process_set: ProcessSet) -> list[int]:
    """Returns how many rows each member had for this rank."""
    own = process_set.rank() or 0
    return [response.requests[member].splits[own] for member in response.members]
