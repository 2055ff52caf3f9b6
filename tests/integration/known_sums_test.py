"""Sums that NumPy knows, at every placement and world size: few elements for many ranks, and none."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.mpi_jobs import mpirun
from integration.processes import Ended, agreed, python, run_to_the_end

WORLD_SIZES = [1, 2, 3, 5, 8]


def start(store: str, workers: int, folder: Path) -> Ended:
    sums = "any_order" if store == "allreduce_mpi" else "rank_order"
    command = python("known_sums_worker.py", f"store={store}", f"sums={sums}")
    if store.endswith("_mpi"):
        return mpirun(folder, command, ranks=workers, seconds=120)
    servers = 3 if store == "dist_sync" else None
    return run_to_the_end(folder, command, workers=workers, servers=servers, seconds=120)


@pytest.mark.parametrize("workers", WORLD_SIZES)
@pytest.mark.parametrize("store", ["dist_sync", "allreduce", "dist_sync_mpi", "allreduce_mpi"])
def test_every_element_is_what_numpy_says(store: str, workers: int, tmp_path: Path) -> None:
    """Dense: the float32 sum in rank order, to the bit; where MPI adds, within the bound of any order. Codes: exact
    everywhere."""
    ended = start(store, workers, tmp_path / "job")
    assert agreed(ended, workers, "wrong") == {"none": 0, "2bit": 0}
    assert agreed(ended, workers, "refused") is True
