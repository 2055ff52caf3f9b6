"""Jobs under `gradwire run --on-failure continue`: workers that are killed, and others that are added.

A worker is elastic_worker.py or horovod_elastic_worker.py, which note their pids and every step.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Sequence
from typing import Any

from integration.processes import PROGRAMS, Ended, Run, Started, assert_gone, python, wait_until

PATIENCE = 180.0  # a loaded machine imports torch for half a minute
QUICK = {"GRADWIRE_LIVENESS_TIMEOUT": "5s", "GRADWIRE_REGROUP_TIMEOUT": "5s"}


def worker(program: str, **arguments: object) -> list[str]:
    """The command of one."""
    return python(program, *(f"{name}={value}" for name, value in arguments.items()))


class ElasticRun(Run):
    """A job that goes on without workers that die."""

    def go(self, servers: int, flags: Sequence[str], command: Sequence[str]) -> None:
        """Starts it.

        Args:
            flags: of `gradwire run`, besides the numbers of workers and servers.
        """
        self.servers = servers
        self.launch(["--on-failure", "continue", *flags, *command])

    def add(self, command: Sequence[str], **variables: str) -> Started:
        """Starts another worker for the job that runs, with further variables."""
        found = re.search(r"--join (tcp://\S+)", self.launcher.err.read_text())
        assert found, self.launcher.err.read_text()
        flags = ["--join", found[1], "-n", "1", "-s", str(self.servers)]
        return self.start(("run", 1), [str(PROGRAMS / "gradwire"), "run", *flags, *command], variables)

    def lines(self, pid: int) -> list[list[int]]:
        """What a worker has noted: generation, rank, number of workers and step."""
        path = self.folder / f"steps.{pid}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def worker_pid(self, rank: int) -> int:
        path = self.folder / f"worker{rank}.pid"
        wait_until(lambda: path.exists() and path.read_text() != "", PATIENCE, f"worker {rank} to join")
        return int(path.read_text())

    def await_steps(self, pid: int, count: int, workers: int | None = None) -> None:
        def enough() -> bool:
            assert self.launcher.process.poll() is None, str(self.launcher.ended(0))
            return sum(line[2] == (workers or line[2]) for line in self.lines(pid)) >= count

        wait_until(enough, PATIENCE, f"{count} steps of process {pid} with {workers or 'any'} workers")

    def is_again(self, pid: int, workers: int) -> bool:
        """Whether a worker trains with so many in a later generation."""
        assert self.launcher.process.poll() is None, str(self.launcher.ended(0))
        generation, _, count, _ = self.lines(pid)[-1]
        return generation > 1 and count == workers

    def let_end(self, pid: int) -> None:
        """Names the step at which member_worker.py is to end on all ranks, a little later than the one they are at."""
        (self.folder / "end.unfinished").write_text(str(self.lines(pid)[-1][3] + 100))
        (self.folder / "end.unfinished").rename(self.folder / "end")

    def kill(self, rank: int) -> int:
        pid = self.worker_pid(rank)
        os.kill(pid, signal.SIGKILL)
        return pid

    def end_after_a_kill(self, rank: int) -> Ended:
        """Kills a worker once all have trained, and waits for the job's end, of which no process is left."""
        self.await_steps(self.worker_pid(0), 10)
        everything = self.all_pids()
        self.kill(rank)
        ended = self.end(PATIENCE)
        assert_gone(everything)
        return ended


def records(*ended: Ended) -> list[dict[str, Any]]:
    """What the workers have left to say, by rank."""
    found: list[dict[str, Any]] = [record for each in ended for record in each.records()]
    return sorted(found, key=lambda record: record["rank"])


def assert_one_model(found: list[dict[str, Any]], workers: int, steps: int) -> None:
    """So many workers are left, and have the same weights after all steps."""
    assert [(record["rank"], record["workers"]) for record in found] == [(r, workers) for r in range(workers)]
    assert {record["step"] for record in found} == {steps}, found
    assert len({record["weights"] for record in found}) == 1, found


def assert_too_few(ended: Ended) -> None:
    """The job has ended because fewer workers were left than it needs."""
    assert ended.code == 1, str(ended)
    assert "fewer than min_workers=2" in ended.err, str(ended)
