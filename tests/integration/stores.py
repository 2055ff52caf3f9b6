"""Every store, and how a job of it is started: suites that all stores pass iterate STORES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from gradwire.stores import nccl
from integration.mpi_jobs import mpirun
from integration.processes import Ended, Job, python, run_to_the_end

LIBRARY = "where a library sums there is none; use a store such as 'allreduce'"


@dataclass(frozen=True)
class Row:
    """A store, and a job of it.

    Attributes:
        servers: processes of their own.
        start: by itself, by `gradwire run` or by mpirun.
        gives: what a push without an optimizer leads to: sums, or a refusal, since there are only weights.
        refuses_rows: what it says of row-sparse keys; empty where it has them.
        why_not: the reason for which it cannot be used here, or None.
    """

    name: str
    workers: int = 7
    servers: int = 0
    start: Literal["alone", "run", "mpirun"] = "run"
    gives: Literal["sums", "weights"] = "sums"
    refuses_rows: str = ""
    why_not: Callable[[], str | None] = lambda: None


STORES = (
    Row("local", workers=1, start="alone"),
    Row("local_update_cpu", workers=1, start="alone"),
    Row("local_allreduce_cpu", workers=1, start="alone"),
    Row("device", workers=1, start="alone"),
    Row("local_allreduce_device", workers=1, start="alone"),
    Row("dist", servers=2),
    Row("dist_sync", servers=2),
    Row("dist_sync_device", servers=2),
    Row("dist_device_sync", servers=2),
    Row("dist_async", servers=2, gives="weights"),
    Row("dist_async_device", servers=2, gives="weights"),
    Row("dist_device_async", servers=2, gives="weights"),
    Row("p3", servers=2),
    Row("byteps", servers=2),
    Row("allreduce"),
    Row("horovod"),
    Row("dist_sync_mpi", start="mpirun"),
    Row("allreduce_mpi", start="mpirun", refuses_rows=LIBRARY),
    Row("nccl", workers=1, refuses_rows=LIBRARY, why_not=nccl.why_not),
)


def run(row: Row, folder: Path, *program: str) -> Ended:
    """Runs a program beside this file, with its arguments, on every worker of a job of the store."""
    if row.why_not() is not None:
        pytest.skip(str(row.why_not()))
    command = python(*program)
    if row.start == "mpirun":
        return mpirun(folder, command, ranks=row.workers, seconds=240)
    if row.start == "run":
        return run_to_the_end(folder, command, workers=row.workers, servers=row.servers, seconds=240)
    with Job(folder, {}) as job:
        return job.start(("worker", 0), command).ended(240)
