"""Jobs of processes that are saved, killed, and gone on from: the weights are those of a job that never stopped."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

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


class Jobs:
    """Trains what tests compare with once: a job that never stopped, and the checkpoint of one that was killed.

    Options are the worker's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._weights: dict[tuple[str, tuple[str, ...]], object] = {}
        self._checkpoints: dict[tuple[str, tuple[str, ...]], Path] = {}

    def undisturbed(self, codec: str, *options: str) -> object:
        """The weights of a job that never stopped."""
        key = (codec, options)
        if key not in self._weights:
            folder = self._folder / f"undisturbed{len(self._weights)}"
            ended = run_to_the_end(folder, program(folder, codec, *options), **numbers(options))
            self._weights[key] = agreed(ended, WORKERS)
        return self._weights[key]

    def checkpoint(self, into: Path, codec: str, *options: str) -> Path:
        """A copy of the checkpoint of a job that saved after SAVED steps, took some more, and was killed, every process
        of it at once."""
        key = (codec, options)
        if key not in self._checkpoints:
            folder = self._folder / f"killed{len(self._checkpoints)}"
            train_and_kill(folder, codec, *options)
            self._checkpoints[key] = folder / "ck"
        return Path(shutil.copytree(self._checkpoints[key], into / "ck"))


def numbers(options: tuple[str, ...]) -> dict[str, Any]:
    return {"workers": WORKERS, "servers": None if "store=allreduce" in options else 2}


def train_and_kill(folder: Path, codec: str, *options: str) -> None:
    folder.mkdir()
    with Run(folder, {}, **numbers(options)) as job:
        job.launch(program(folder / "ck", codec, f"save={SAVED}", f"hang={KILLED}", *options))
        job.wait_until_training(WORKERS)
        everything = job.all_pids()
        for pid in everything:
            os.kill(pid, signal.SIGKILL)
        job.end(30)
        assert_gone(everything)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    return Jobs(tmp_path_factory.mktemp("jobs"))


@pytest.mark.parametrize("codec", CODECS)
def test_a_killed_job_goes_on_as_if_it_had_not_been(codec: str, jobs: Jobs, tmp_path: Path) -> None:
    checkpoint = jobs.checkpoint(tmp_path, codec)
    resumed = run_to_the_end(tmp_path / "resumed", program(checkpoint, codec, "resume=1"), workers=WORKERS)
    assert agreed(resumed, WORKERS) == jobs.undisturbed(codec)
    assert all(record["begin"] == SAVED for record in resumed.records())


@pytest.mark.parametrize("options", [("store=allreduce",), ("warm_up=1",)])
def test_other_stores_and_a_warm_up_do_too(options: tuple[str, ...], jobs: Jobs, tmp_path: Path) -> None:
    codec = "2bit:threshold=auto"
    checkpoint = jobs.checkpoint(tmp_path, codec, *options)
    command = program(checkpoint, codec, "resume=1", *options)
    resumed = run_to_the_end(tmp_path / "resumed", command, **numbers(options))
    assert agreed(resumed, WORKERS) == jobs.undisturbed(codec, *options)


@pytest.mark.parametrize(("workers", "servers"), [(3, 2), (6, 3)])
def test_a_job_goes_on_with_other_numbers_of_processes(
    workers: int, servers: int, jobs: Jobs, tmp_path: Path
) -> None:
    codec = "2bit:threshold=auto"
    checkpoint = jobs.checkpoint(tmp_path, codec)
    resumed = run_to_the_end(
        tmp_path / "resumed", program(checkpoint, codec, "resume=1"), workers=workers, servers=servers
    )
    agreed(resumed, workers)
    assert all(record["begin"] == SAVED for record in resumed.records())


def test_a_job_that_is_killed_while_it_saves_leaves_the_checkpoint_before(jobs: Jobs, tmp_path: Path) -> None:
    codec = "2bit:threshold=auto"
    checkpoint = jobs.checkpoint(tmp_path, codec)
    before = (checkpoint / "checkpoint.manifest").read_bytes()
    (tmp_path / "again").mkdir()
    with Run(tmp_path / "again", {}, workers=WORKERS) as job:
        job.launch(program(checkpoint, codec, "resume=1", "save=5", "die_while_saving=1"))
        ended = job.end(90)
    assert ended.code != 0, str(ended)
    assert (checkpoint / "000002.worker-1.state.unfinished").stat().st_size == 1_000_000
    assert (checkpoint / "checkpoint.manifest").read_bytes() == before
    resumed = run_to_the_end(tmp_path / "resumed", program(checkpoint, codec, "resume=1"), workers=WORKERS)
    assert agreed(resumed, WORKERS) == jobs.undisturbed(codec)
