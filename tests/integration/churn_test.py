"""What comes and goes leaves nothing behind: jobs in one process, and the workers of a job that goes on.

Descriptors, threads and memory are fitted with a line, whose slope must be below a bound together with the half of its
95 % interval: what is not known well enough fails too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from integration.elastic_jobs import PATIENCE, QUICK, ElasticRun, worker
from integration.processes import SCHEDULER, clean_environment, member_of, python, wait_until

Held = dict[str, np.ndarray]  # of a process, one number a sample

WARM_UP = 4  # jobs, or changes of members, in which libraries and pools take what they keep
KINDS = {"peers": ("allreduce", 0), "servers": ("dist_sync", 1)}
# The most that each may grow by in a job, or with a change of members.
BOUNDS = {"descriptors": 0.01, "threads": 0.01, "resident_bytes": 8192.0}
SHORT_BOUNDS = {"descriptors": 0.0, "threads": 0.0, "resident_bytes": 1048576.0}


def slope(y: np.ndarray) -> tuple[float, float]:
    """Least squares, and half of the 95 % interval (the samples taken as independent)."""
    centred = np.arange(len(y)) - (len(y) - 1) / 2
    estimate = float(centred @ y / (centred @ centred))
    rest = y - y.mean() - estimate * centred
    error = float(np.sqrt(rest @ rest / (len(y) - 2) / (centred @ centred)))
    return estimate, 1.96 * error


def assert_flat(held: dict[str, Held], bounds: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    """Tells the slopes of every process, also where all is well, and compares them."""
    grown = []
    for process, kinds in held.items():
        for name, bound in bounds.items():
            each, half = slope(kinds[name])
            words = (
                f"{process}: {name} grow by {each:.4g} +- {half:.2g} each time over {len(kinds[name])} times, "
                f"from {kinds[name][0]:g} to {kinds[name][-1]:g} (bound: {bound:g})"
            )
            with capsys.disabled():
                print(f"\n{words}", end="", flush=True)
            if each + half > bound:
                grown.append(words)
    assert not grown, "\n".join(grown)


def churn_jobs(folder: Path, seconds: float) -> Held:
    """What one process held after each job, the first ones left out."""
    command = python("churn_worker.py", f"seconds={seconds:g}")
    done = subprocess.run(
        command, env=clean_environment(folder, {}), capture_output=True, text=True, timeout=seconds + 120
    )
    assert done.returncode == 0, done.stderr
    samples = [json.loads(line) for line in done.stdout.splitlines()][WARM_UP:]
    return {name: np.array([sample[name] for sample in samples], float) for name in BOUNDS}


def held_by(pid: int) -> dict[str, int]:
    """What a process holds of the system; the least of some looks, for sockets and threads end a little later."""
    looks = []
    for _ in range(8):
        memory = (Path(f"/proc/{pid}") / "statm").read_text().split()[1]
        looks.append(
            {
                "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
                "threads": len(os.listdir(f"/proc/{pid}/task")),
                "resident_bytes": int(memory) * os.sysconf("SC_PAGE_SIZE"),
            }
        )
        time.sleep(0.05)
    return {name: min(look[name] for look in looks) for name in BOUNDS}


class Churn:
    """A job of two workers, one of which is killed again and again, and another started in its place."""

    def __init__(self, job: ElasticRun, kind: str) -> None:
        store, servers = KINDS[kind]
        self.job = job
        job.go(
            servers,
            ["--restarts", "1000000"],
            worker("member_worker.py", store=store, steps=0, pause=0.01),
        )
        self.victim = job.worker_pid(1)
        self.watched = {"worker 0": job.worker_pid(0), "launcher": job.launcher.process.pid}
        for pid in job.all_pids():
            if (member := member_of(pid)) is not None:
                role, rank = member
                self.watched["scheduler" if member == SCHEDULER else f"{role} {rank}"] = pid
        assert len(self.watched) == 3 + servers, self.watched
        job.await_steps(self.watched["worker 0"], 10)

    def change(self) -> dict[str, dict[str, int]]:
        """Kills the one that came last, and returns what all others hold when the next has trained with them."""
        os.kill(self.victim, signal.SIGKILL)
        for name in (f"newcomer{self.victim}.pid", f"steps.{self.victim}"):
            (self.job.folder / name).unlink(missing_ok=True)  # in half an hour another gets the same pid

        def trains() -> bool:
            assert self.job.launcher.process.poll() is None, str(self.job.launcher.ended(0))
            pids = [path.read_text() for path in self.job.folder.glob("newcomer*.pid")]
            found = [int(pid) for pid in pids if pid]
            self.victim = found[0] if found else self.victim
            return bool(found) and len(self.job.lines(self.victim)) >= 3

        wait_until(trains, PATIENCE, "another worker to train in the place of one that was killed")
        return {name: held_by(pid) for name, pid in self.watched.items()}


def churn_workers(folder: Path, kind: str, changes: int, seconds: float = 0.0) -> dict[str, Held]:
    """What each process of a job held after each change of its members, the first ones left out."""
    with ElasticRun(folder, QUICK | {"GRADWIRE_LIVENESS_TIMEOUT": "3s"}, workers=2) as job:
        churn = Churn(job, kind)
        samples = []
        began = time.monotonic()
        while len(samples) < WARM_UP + changes or time.monotonic() - began < seconds:
            samples.append(churn.change())
        os.kill(job.launcher.process.pid, signal.SIGTERM)
        job.end(PATIENCE)
    return {
        process: {
            name: np.array([each[process][name] for each in samples[WARM_UP:]], float) for name in BOUNDS
        }
        for process in churn.watched
    }


def test_jobs_leave_nothing_in_their_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_flat({"process": churn_jobs(tmp_path, seconds=0)}, SHORT_BOUNDS, capsys)


@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_are_killed_and_replaced_leave_nothing_in_the_others(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_flat(churn_workers(tmp_path, kind, changes=5), SHORT_BOUNDS, capsys)


@pytest.mark.soak
def test_thirty_minutes_of_jobs_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_flat({"process": churn_jobs(tmp_path, seconds=1800)}, BOUNDS, capsys)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_thirty_minutes_of_workers_that_come_and_go_leave_nothing(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_flat(churn_workers(tmp_path, kind, changes=5, seconds=1800), BOUNDS, capsys)
