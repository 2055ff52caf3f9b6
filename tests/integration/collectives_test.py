"""The collectives between real processes: with dedicated servers, and without."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from integration.processes import NOTICE_SECONDS, Run, assert_gone, names, python, run_to_the_end

# store, workers, servers
JOBS = [("allreduce", 3, None), ("dist_sync", 2, 3), ("allreduce", 2, None)]


@pytest.mark.parametrize(("store", "workers", "servers"), JOBS)
def test_every_collective_gives_what_numpy_says(
    store: str, workers: int, servers: int | None, tmp_path: Path
) -> None:
    command = python("collectives_worker.py", f"store={store}", "mode=check")
    ended = run_to_the_end(tmp_path, command, workers=workers, servers=servers, seconds=120)
    assert ended.code == 0, str(ended)
    hashes = [record["result"] for record in ended.records()]
    assert len(hashes) == workers
    assert len(set(map(str, hashes))) == 1


def test_ranks_that_differ_get_one_error(tmp_path: Path) -> None:
    command = python("collectives_worker.py", "store=allreduce", "mode=misuse")
    ended = run_to_the_end(tmp_path, command, workers=3, servers=None)
    assert ended.code == 0, str(ended)
    first, second, third = (record["result"] for record in ended.records())
    assert first == second == third
    expected = ["op=sum, worker 1 has op=max", "dtype=float32", "shape=(1, 4)", "root=0", "row_shape=(4,)"]
    assert isinstance(first, list)
    for text, words in zip(first, expected, strict=True):
        assert words in text


@pytest.mark.parametrize("servers", [None, 1])
def test_a_killed_worker_is_named_by_the_others(servers: int | None, tmp_path: Path) -> None:
    store = "dist_sync" if servers else "allreduce"
    with Run(tmp_path, {}, workers=3, servers=servers) as job:
        job.launch(python("collectives_worker.py", f"store={store}", "mode=endless"))
        job.wait_until_training(3)
        everything = job.all_pids()
        os.kill(job.pids()["worker", 1], signal.SIGKILL)
        ended = job.end(NOTICE_SECONDS)
        assert_gone(everything)
    assert ended.code == 128 + signal.SIGKILL, str(ended)
    for rank in (0, 2):
        own = "\n".join(line for line in ended.err.splitlines() if line.startswith(f"[worker {rank}]"))
        assert names(own, ("worker", 1)), str(ended)
