"""Jobs of processes that are saved, killed, and gone on from: the weights are those of a job that never stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from integration.processes import Run, agreed, assert_gone, python, run_to_the_end

WORKERS = 4
STEPS, SAVED, KILLED = 8, 4, 6

soak = pytest.mark.soak  # more of the same: three jobs of four workers each
CODECS = [
    "none",
    pytest.param("fp16", marks=soak),
    pytest.param("2bit:threshold=0.01", marks=soak),
    "2bit:threshold=auto",
    pytest.param("2bit:threshold=auto,reply=2bit", marks=soak),
    "topk",
]


def program(folder: Path, codec: str, *options: str) -> list[str]:
    return python("checkpoint_worker.py", f"folder={folder}", f"codec={codec}", f"steps={STEPS}", *options)


def train_and_kill(folder: Path, codec: str, *options: str, store: str = "dist_sync") -> Path:
    """Saves after SAVED steps, takes some more, and is killed, every process of it at once. Returns the checkpoint."""
    folder.mkdir()
    servers = 2 if store == "dist_sync" else None
    with Run(folder, {}, workers=WORKERS, servers=servers) as job:
        job.launch(
            program(folder / "ck", codec, f"save={SAVED}", f"hang={KILLED}", f"store={store}", *options)
        )
        job.wait_until_training(WORKERS)
        everything = job.all_pids()
        for pid in everything:
            os.kill(pid, signal.SIGKILL)
        job.end(30)
        assert_gone(everything)
    return folder / "ck"


@pytest.mark.parametrize("codec", CODECS)
def test_a_killed_job_goes_on_as_if_it_had_not_been(codec: str, tmp_path: Path) -> None:
    undisturbed = run_to_the_end(tmp_path / "undisturbed", program(tmp_path, codec), workers=WORKERS)
    checkpoint = train_and_kill(tmp_path / "killed", codec)
    resumed = run_to_the_end(tmp_path / "resumed", program(checkpoint, codec, "resume=1"), workers=WORKERS)
    assert agreed(resumed, WORKERS) == agreed(undisturbed, WORKERS)
    assert all(record["begin"] == SAVED for record in resumed.records())


@pytest.mark.parametrize("options", [("store=allreduce",), ("warm_up=1",)])
def test_other_stores_and_a_warm_up_do_too(options: tuple[str, ...], tmp_path: Path) -> None:
    codec = "2bit:threshold=auto"
    store = "allreduce" if "store=allreduce" in options else "dist_sync"
    servers = None if store == "allreduce" else 2
    undisturbed = run_to_the_end(
        tmp_path / "undisturbed", program(tmp_path, codec, *options), workers=WORKERS, servers=servers
    )
    checkpoint = train_and_kill(tmp_path / "killed", codec, *options, store=store)
    resumed = run_to_the_end(
        tmp_path / "resumed",
        program(checkpoint, codec, "resume=1", *options),
        workers=WORKERS,
        servers=servers,
    )
    assert agreed(resumed, WORKERS) == agreed(undisturbed, WORKERS)


@pytest.mark.parametrize(("workers", "servers"), [(3, 2), (6, 3)])
def test_a_job_goes_on_with_other_numbers_of_processes(workers: int, servers: int, tmp_path: Path) -> None:
    codec = "2bit:threshold=auto"
    checkpoint = train_and_kill(tmp_path / "killed", codec)
    resumed = run_to_the_end(
        tmp_path / "resumed", program(checkpoint, codec, "resume=1"), workers=workers, servers=servers
    )
    agreed(resumed, workers)
    assert all(record["begin"] == SAVED for record in resumed.records())


def test_a_job_that_is_killed_while_it_saves_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    codec = "2bit:threshold=auto"
    undisturbed = run_to_the_end(tmp_path / "undisturbed", program(tmp_path, codec), workers=WORKERS)
    checkpoint = train_and_kill(tmp_path / "killed", codec)
    before = (checkpoint / "checkpoint.manifest").read_bytes()
    (tmp_path / "again").mkdir()
    with Run(tmp_path / "again", {}, workers=WORKERS) as job:
        job.launch(program(checkpoint, codec, "resume=1", "save=5", "die_while_saving=1"))
        ended = job.end(90)
    assert ended.code != 0, str(ended)
    assert (checkpoint / "000002.worker-1.state.unfinished").stat().st_size == 1_000_000
    assert (checkpoint / "checkpoint.manifest").read_bytes() == before
    resumed = run_to_the_end(tmp_path / "resumed", program(checkpoint, codec, "resume=1"), workers=WORKERS)
    assert agreed(resumed, WORKERS) == agreed(undisturbed, WORKERS)
