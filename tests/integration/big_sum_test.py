"""A rank is killed in the middle of a sum of 400 MB: nobody waits for it longer than the deadline."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from integration.mpi_jobs import Mpi
from integration.processes import (
    NOTICE_SECONDS,
    START_SECONDS,
    Job,
    Run,
    assert_gone,
    names,
    python,
    wait_until,
)

WORKERS, VICTIM = 3, 1


def pids_once_killed(job: Job, everybody: list[int]) -> list[int]:
    """Waits for the victim to die; returns all processes that the job has had."""

    def killed() -> bool:
        assert job.members["run", 0].process.poll() is None or (job.folder / "killed").exists(), str(
            job.members["run", 0].ended(0)
        )
        everybody[:] = sorted({*everybody, *job.all_pids()})  # type: ignore[attr-defined]
        return (job.folder / "killed").exists()

    wait_until(killed, START_SECONDS, "the victim to be in the middle of its sum")
    return everybody


def test_over_zmq_all_others_raise_and_name_it(tmp_path: Path) -> None:
    with Run(tmp_path, {}, workers=WORKERS, servers=None) as job:
        job.launch(python("big_sum_worker.py", "store=allreduce", f"victim={VICTIM}"))
        everybody = pids_once_killed(job, [])
        ended = job.end(NOTICE_SECONDS)
        assert_gone(everybody)
    assert ended.code == 128 + signal.SIGKILL, str(ended)
    assert "lack nobody" not in ended.err, str(ended)
    for rank in set(range(WORKERS)) - {VICTIM}:
        own = "\n".join(line for line in ended.err.splitlines() if line.startswith(f"[worker {rank}]"))
        assert "TransportError" in own, str(ended)
        assert names(own, ("worker", VICTIM)), str(ended)


@pytest.mark.parametrize("store", ["dist_sync_mpi", "allreduce_mpi"])
def test_under_mpi_all_are_gone_and_the_first_cause_is_told(store: str, tmp_path: Path) -> None:
    with Mpi(tmp_path, {"GRADWIRE_LIVENESS_TIMEOUT": "5s"}, ranks=WORKERS) as job:
        job.launch(python("big_sum_worker.py", f"store={store}", f"victim={VICTIM}"))
        everybody = pids_once_killed(job, [])
        ended = job.launcher.ended(NOTICE_SECONDS)
        assert_gone(everybody)
    assert ended.code != 0, str(ended)
    assert "lack nobody" not in ended.err, str(ended)
    assert names(ended.err, ("rank", VICTIM)) or names(ended.err, ("worker", VICTIM)), str(ended)
