"""What every store does, with MXNet's own acceptance numbers: a store joins by a row of STORES.

Source: MXNet 1.9.1, tests/nightly/dist_sync_kvstore.py, which runs 7 workers. Its `test` optimizer adds rescale_grad
times the sum, here 2 times: dense pushes of rank + 1 on 1 leave (N + 1) N (i + 1) + 1 after round i; with 2bit and
threshold .5 pushes of 0, .4, .1, .2, .3, .5 leave 0, 0, N, N, 2N, 3N; a step of SGD on 1 leaves 1 - (N + 1) N / 2.
All numbers are small and whole, so that stores which apply each worker's push by itself end at the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from gradwire import joining, nccl
from integration.mpi_jobs import mpirun
from integration.processes import Ended, Job, python, run_to_the_end


@dataclass(frozen=True)
class Row:
    """A store, and a job of it.

    Attributes:
        servers: processes of their own.
        start: by itself, by `gradwire run` or by mpirun.
        gives: what a push without an optimizer leads to: sums, or a refusal, since there are only weights.
        why_not: the reason for which it cannot be used here, or None.
    """

    name: str
    workers: int = 7
    servers: int = 0
    start: Literal["alone", "run", "mpirun"] = "run"
    gives: Literal["sums", "weights"] = "sums"
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
    Row("allreduce_mpi", start="mpirun"),
    Row("nccl", workers=1, why_not=nccl.why_not),
)


def run(row: Row, folder: Path) -> Ended:
    command = python("store_conformance_worker.py", row.name, row.gives)
    if row.start == "mpirun":
        return mpirun(folder, command, ranks=row.workers, seconds=180)
    if row.start == "run":
        return run_to_the_end(folder, command, workers=row.workers, servers=row.servers, seconds=180)
    with Job(folder, {}) as job:
        return job.start(("worker", 0), command).ended(180)


def test_every_store_is_tested() -> None:
    assert [row.name for row in STORES] == joining.names()


@pytest.mark.parametrize("row", STORES, ids=lambda row: row.name)
def test_a_store(row: Row, tmp_path: Path) -> None:
    if (reason := row.why_not()) is not None:
        pytest.skip(reason)
    ended = run(row, tmp_path)
    assert ended.code == 0, str(ended)
    records = ended.records()
    n = row.workers
    assert sorted(record["rank"] for record in records) == list(range(n))  # type: ignore[type-var]
    total = n * (n + 1) // 2  # of rank + 1
    dense = [2 * total * (i + 1) + 1 for i in range(3)]
    for record in records:
        assert record["type"] == row.name
        assert record["num_workers"] == n
        assert record["is_capable"] == [True, True, False]
        assert record["broadcast"] == n - 1
        assert record["first_values"] == [0, 1]
        for text, said in zip(
            record["mistakes"],  # type: ignore[call-overload]
            (
                "'never' has not been initialised",
                "has no element",
                "did you mean 2bit",
                "did you mean 'sgd'",
            ),
            strict=True,
        ):
            assert said in text
        if row.gives == "sums":
            assert record["sums"] == [total, 2 * total, total]
        else:
            for text in record["without_an_optimizer"]:  # type: ignore[attr-defined]
                assert "there is no optimizer that could; call set_optimizer" in text
        assert record["dense float32"] == record["dense float16"] == record["fp16"] == dense
        assert record["2bit push"] == record["2bit pushpull"] == [0, 0, n, n, 2 * n, 3 * n]
        assert record["2bit random"] == 7
        assert record["trainer"] == 1 - total
