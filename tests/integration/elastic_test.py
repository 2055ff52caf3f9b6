"""Jobs that go on without workers that are killed, and take in new ones: real processes, kill -9."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from integration.processes import PROGRAMS, Ended, Run, assert_gone, python, wait_until

PATIENCE = 180.0  # a loaded machine imports torch for half a minute
QUICK = {"GRADWIRE_LIVENESS_TIMEOUT": "5s", "GRADWIRE_REGROUP_TIMEOUT": "5s"}

STORES = {
    "peers": ("allreduce", "0", "2bit:threshold=0.5"),
    "servers": ("dist_sync", "2", "2bit:threshold=0.5"),
}
each_store = pytest.mark.parametrize("kind", STORES)


class ElasticRun(Run):
    """A job under `gradwire run --on-failure continue`."""

    def launch_elastic(self, kind: str, *flags: str, **arguments: object) -> None:
        store, servers, codec = STORES[kind]
        words = [f"{name}={value}" for name, value in arguments.items()]
        worker = python("elastic_worker.py", f"store={store}", f"codec={codec}", *words)
        counts = ["-n", str(self.workers), "-s", servers]
        launcher = str(PROGRAMS / "gradwire")
        self.start(("run", 0), [launcher, "run", *counts, "--on-failure", "continue", *flags, *worker])

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

    def kill(self, rank: int) -> int:
        pid = self.worker_pid(rank)
        os.kill(pid, signal.SIGKILL)
        return pid


def records(ended: Ended) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ended.records()
    return sorted(found, key=lambda record: record["rank"])


def assert_same_weights(found: list[dict[str, Any]], workers: int, steps: int) -> None:
    assert [record["rank"] for record in found] == list(range(workers)), found
    assert {record["workers"] for record in found} == {workers}, found
    assert {record["step"] for record in found} == {steps}, found
    assert len({record["weights"] for record in found}) == 1, found
    assert all(all(record["residuals_kept"]) for record in found), found


@each_store
def test_the_others_go_on_without_a_killed_worker(kind: str, tmp_path: Path) -> None:
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        job.launch_elastic(kind, "--min-workers", "2", steps=120)
        job.await_steps(job.worker_pid(0), 10)
        everything = job.all_pids()
        job.kill(1)
        ended = job.end(PATIENCE)
        assert_gone(everything)
    assert ended.code == 0, str(ended)
    found = records(ended)
    assert_same_weights(found, workers=2, steps=120)
    assert [record["first_rank"] for record in found] == [0, 2]  # in the order of their ranks
    assert {record["generation"] for record in found} == {2}
    assert found[0]["residuals_kept"] == [True]  # to the bit, and there were some
    assert found[0]["loss"] < 20.0  # 37 before the first step
    assert re.search(r"worker 1 \(pid \d+\) was killed by SIGKILL; the job goes on without it", ended.err)
    assert re.search(r"worker 1 \(.*\) closed its connection.*the job goes on", ended.err), str(ended)


def test_another_is_started_in_the_place_of_a_killed_worker(tmp_path: Path) -> None:
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        job.launch_elastic("peers", "--restarts", "1", "--json", str(tmp_path / "run.json"), steps=4000)
        pid = job.worker_pid(0)
        job.await_steps(pid, 10)
        job.kill(1)
        # The other may be there when the others meet, or come later: then they have met without it before.
        wait_until(lambda: job.is_again(pid, workers=3), PATIENCE, "three workers to train again")
        generation = job.lines(pid)[-1][0]
        job.kill(0)  # and whoever is left goes on with the one that came
        left = job.worker_pid(2)
        wait_until(lambda: job.lines(left)[-1][0] > generation, PATIENCE, "the next generation to train")
        os.kill(job.launcher.process.pid, signal.SIGTERM)
        job.end(PATIENCE)
    steps = [line[3] for line in job.lines(left)]
    assert job.lines(left)[-1][:3] == [generation + 1, 0, 2]
    # A commit every step: none is taken twice; that at which the newcomer was let in ends commit() with an error.
    assert sorted(set(steps)) == steps
    assert len(set(range(1, steps[-1] + 1)) - set(steps)) <= 1


def test_a_worker_is_added_to_a_running_job(tmp_path: Path) -> None:
    with ElasticRun(tmp_path, QUICK, workers=2) as job:
        job.launch_elastic("servers", steps=1500, pause=0.03)
        pid = job.worker_pid(0)
        job.await_steps(pid, 10)
        found = re.search(r"--join (tcp://\S+)", job.launcher.err.read_text())
        assert found, job.launcher.err.read_text()
        store, servers, codec = STORES["servers"]
        worker = python("elastic_worker.py", f"store={store}", f"codec={codec}", "steps=1500", "pause=0.03")
        command = [str(PROGRAMS / "gradwire"), "run", "--join", found[1], "-n", "1", "-s", servers, *worker]
        added = job.start(("run", 1), command)
        job.await_steps(pid, 20, workers=3)
        ended, ended_too = job.end(PATIENCE), added.ended(PATIENCE)
    assert ended.code == 0, str(ended)
    assert ended_too.code == 0, str(ended_too)
    both = sorted([*ended.records(), *ended_too.records()], key=lambda record: str(record["rank"]))
    assert_same_weights(both, workers=3, steps=1500)
    assert both[2]["first_generation"] == 2  # newcomers are behind


def test_two_die_one_of_them_while_the_others_meet_again(tmp_path: Path) -> None:
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        job.launch_elastic("peers", steps=60)
        job.await_steps(job.worker_pid(2), 10)
        job.kill(0)
        wait_until(
            lambda: "worker 0 (" in job.launcher.err.read_text(), PATIENCE, "the death of worker 0 to be told"
        )
        job.kill(1)
        ended = job.end(PATIENCE)
    assert ended.code == 0, str(ended)
    assert_same_weights(records(ended), workers=1, steps=60)


def test_below_the_fewest_workers_the_job_ends_and_says_so(tmp_path: Path) -> None:
    with ElasticRun(tmp_path, QUICK, workers=2) as job:
        job.launch_elastic("peers", "--min-workers", "2", steps=100000)
        job.await_steps(job.worker_pid(0), 10)
        everything = job.all_pids()
        job.kill(1)
        ended = job.end(PATIENCE)
        assert_gone(everything)
    assert ended.code == 1, str(ended)
    assert "fewer than min_workers=2" in ended.err, str(ended)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raise", "ended with OSError: no such file of examples"),
        ("exit", "ended with SystemExit: 3"),
    ],
)
def test_a_worker_with_an_error_of_its_own_is_named_to_the_others(
    how: str, told: str, tmp_path: Path
) -> None:
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        job.launch_elastic("peers", steps=60, fail="1:20", how=how)
        ended = job.end(PATIENCE)
    assert ended.code == 0, str(ended)
    assert_same_weights(records(ended), workers=2, steps=60)
    assert told in ended.err, str(ended)


def test_a_death_before_the_first_step_ends_nobody_else(tmp_path: Path) -> None:
    """Nobody has trained, so that nobody's weights are lost."""
    program = (
        "import json, os, signal, gradwire as gw\n"
        "store = gw.kv.create('allreduce')\n"
        "if store.rank == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "@gw.elastic.run\n"
        "def train(state):\n"
        "    state.step += 1\n"
        "    state.commit()\n"
        "state = gw.elastic.State(step=0)\n"
        "train(state)\n"
        "print(json.dumps({'workers': state.store.num_workers, 'step': state.step}), flush=True)\n"
    )
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        launcher = [str(PROGRAMS / "gradwire"), "run", "-n", "3", "-s", "0", "--on-failure", "continue"]
        job.start(("run", 0), [*launcher, sys.executable, "-c", program])
        ended = job.end(PATIENCE)
    assert ended.code == 0, str(ended)
    assert ended.records() == [{"workers": 2, "step": 1}] * 2


def test_a_death_while_the_others_are_let_in_is_ridden_out(tmp_path: Path) -> None:
    """Worker 2 dies when all are called, before any of them could reach it: kv.create joins again."""
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        job.launch_elastic("peers", steps=20, desert=2)
        ended = job.end(PATIENCE)
    assert ended.code == 0, str(ended)
    assert_same_weights(records(ended), workers=2, steps=20)
    assert {record["first_generation"] for record in records(ended)} == {2}


def test_a_death_while_the_others_make_their_optimizers_ends_nobody_else(tmp_path: Path) -> None:
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        job.launch_elastic("peers", steps=20, die=2)
        ended = job.end(PATIENCE)
    assert ended.code == 0, str(ended)
    assert_same_weights(records(ended), workers=2, steps=20)
    assert {record["generation"] for record in records(ended)} == {2}


def test_a_store_whose_job_cannot_go_on_says_why(tmp_path: Path) -> None:
    with ElasticRun(tmp_path, {"GRADWIRE_ON_FAILURE": "continue"}, workers=1) as job:
        program = (
            "import gradwire as gw\n"
            "for name in ('dist_async', 'allreduce_mpi'):\n"
            "    try: gw.kv.create(name)\n"
            "    except ValueError as error: print(error)\n"
            "kv = gw.kv.create('dist_sync')\n"
            "try: kv.set_optimizer('sgd', learning_rate=0.1)\n"
            "except ValueError as error: print(error)\n"
        )
        job.start(
            ("run", 0),
            [str(PROGRAMS / "gradwire"), "run", "-n", "1", "-s", "1", sys.executable, "-c", program],
        )
        ended = job.end(PATIENCE)
    assert ended.code == 0, str(ended)
    for words in (
        "'dist_async'): on_failure=continue",
        "'allreduce_mpi'): on_failure=continue",
        "set_optimizer",
    ):
        assert words in ended.out, str(ended)
