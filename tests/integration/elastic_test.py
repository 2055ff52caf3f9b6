"""Jobs that go on without workers that are killed, and take in new ones: real processes, kill -9."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import gradwire
import numpy as np
import pytest
from integration.elastic_jobs import (
    PATIENCE,
    QUICK,
    ElasticRun,
    assert_one_model,
    assert_too_few,
    records,
    worker,
)
from integration.processes import Run, wait_until

STORES = {
    "peers": ("allreduce", 0, "2bit:threshold=0.5"),
    "servers": ("dist_sync", 2, "2bit:threshold=0.5"),
}
each_store = pytest.mark.parametrize("kind", STORES)
KEY = "0123456789abcdef" * 8


def launch(job: ElasticRun, kind: str, *flags: str, **arguments: object) -> None:
    _, servers, _ = STORES[kind]
    job.go(servers, flags, worker_of(kind, **arguments))


def worker_of(kind: str, **arguments: object) -> list[str]:
    store, _, codec = STORES[kind]
    return worker("elastic_worker.py", store=store, codec=codec, **arguments)


def assert_same_weights(found: list[dict[str, Any]], workers: int, steps: int) -> None:
    assert_one_model(found, workers, steps)
    assert all(all(record["residuals_kept"]) for record in found), found


@each_store
def test_the_others_go_on_without_a_killed_worker(kind: str, tmp_path: Path) -> None:
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        launch(job, kind, "--min-workers", "2", steps=120)
        ended = job.end_after_a_kill(1)
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
        launch(job, "peers", "--restarts", "1", "--json", str(tmp_path / "run.json"), steps=4000)
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
        launch(job, "servers", steps=400, pause=0.1, until=3)
        pid = job.worker_pid(0)
        job.await_steps(pid, 10)
        added = job.add(worker_of("servers", steps=400, pause=0.1, until=3))
        job.await_steps(pid, 20, workers=3)
        ended, ended_too = job.end(PATIENCE), added.ended(PATIENCE)
    assert ended.code == 0, str(ended)
    assert ended_too.code == 0, str(ended_too)
    both = records(ended, ended_too)
    assert_same_weights(both, workers=3, steps=400)
    assert both[2]["first_generation"] == 2  # newcomers are behind


def test_two_die_one_of_them_while_the_others_meet_again(tmp_path: Path) -> None:
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        launch(job, "peers", steps=60)
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
        launch(job, "peers", "--min-workers", "2", steps=100000)
        assert_too_few(job.end_after_a_kill(1))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raise", "ended with OSError: no such file of examples"),
        ("exit", "ended with SystemExit: 3"),
        ("connection", "ended with ConnectionResetError: the data set's host has gone"),
    ],
)
def test_a_worker_with_an_error_of_its_own_is_named_to_the_others(
    how: str, told: str, tmp_path: Path
) -> None:
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        launch(job, "peers", steps=60, fail="1:20", how=how)
        ended = job.end(PATIENCE)
    assert ended.code == 0, str(ended)
    assert_same_weights(records(ended), workers=2, steps=60)
    assert told in ended.err, str(ended)


@pytest.mark.parametrize("servers", [0, 1])
@pytest.mark.parametrize(
    ("variables", "arguments", "words"),
    [
        (
            {"GRADWIRE_PARTITION_BYTES": "4MiB"},
            {},
            ["GRADWIRE_PARTITION_BYTES=4194304 where the job has GRADWIRE_PARTITION_BYTES=1048576", "--env"],
        ),
        (
            {"GRADWIRE_JOB_KEY": KEY, "GRADWIRE_ENCRYPT": "on"},
            {},
            ["give the same one to every node"],
        ),
        ({}, {"elements": 5}, ["keys differ: worker 0 has", "worker 2 has", "declare the same keys"]),
        ({}, {"fail": "extra"}, ["is in 'barrier'", "make the same calls in the same order"]),
        ({}, {"fail": "setup"}, ["ConnectionError: no such data set"]),
    ],
    ids=["settings", "job key", "keys", "calls", "set-up"],
)
def test_a_newcomer_that_does_not_fit_or_fails_ends_alone(
    variables: dict[str, str], arguments: dict[str, str], words: list[str], servers: int, tmp_path: Path
) -> None:
    store = "dist_sync" if servers else "allreduce"
    with ElasticRun(tmp_path, QUICK, workers=2) as job:
        job.go(servers, [], worker("member_worker.py", store=store, steps=0))
        pid = job.worker_pid(0)
        job.await_steps(pid, 10)
        newcomer = worker("member_worker.py", store=store, steps=0, **arguments)
        ended = job.add(newcomer, **variables).ended(PATIENCE)
        assert ended.code == 1, str(ended)
        assert all(each in ended.err for each in words), str(ended)
        is_let_in = bool(arguments)
        wait_until(lambda: is_let_in <= job.is_again(pid, workers=2), PATIENCE, "the others to go on")
        job.let_end(pid)
        job_ended = job.end(PATIENCE)
    assert job_ended.code == 0, str(job_ended)
    found = records(job_ended)
    assert [record["workers"] for record in found] == [2, 2]
    assert len({record["step"] for record in found}) == 1
    assert is_let_in or {record["generation"] for record in found} == {1}, "it disturbs nobody"


def test_a_worker_is_killed_by_a_fault_once_and_nobody_is_in_its_place(tmp_path: Path) -> None:
    """Ranks move up: who was worker 2 is worker 1 after it, and no other process is to be killed."""
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        command = worker("member_worker.py", steps=300, pause=0.002)
        job.go(0, ["--faults", "kill=worker:1@push:40"], command)
        ended = job.end(PATIENCE)
    assert ended.code == 0, str(ended)
    assert [(record["first_rank"], record["step"]) for record in records(ended)] == [(0, 300), (2, 300)]


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
        job.go(0, [], [sys.executable, "-c", program])
        ended = job.end(PATIENCE)
    assert ended.code == 0, str(ended)
    assert ended.records() == [{"workers": 2, "step": 1}] * 2


def test_a_death_while_the_others_are_let_in_is_ridden_out(tmp_path: Path) -> None:
    """Worker 2 dies when all are called, before any of them could reach it: kv.create joins again."""
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        launch(job, "peers", steps=20, desert=2)
        ended = job.end(PATIENCE)
    assert ended.code == 0, str(ended)
    assert_same_weights(records(ended), workers=2, steps=20)
    assert {record["first_generation"] for record in records(ended)} == {2}


def test_a_death_while_the_others_make_their_optimizers_ends_nobody_else(tmp_path: Path) -> None:
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        launch(job, "peers", steps=20, die=2)
        ended = job.end(PATIENCE)
    assert ended.code == 0, str(ended)
    assert_same_weights(records(ended), workers=2, steps=20)
    assert {record["generation"] for record in records(ended)} == {2}


def test_a_store_whose_job_cannot_go_on_says_why(tmp_path: Path) -> None:
    with contextlib.closing(gradwire.kv.create("local")) as store:
        store.init("w", np.zeros(3, np.float32))
        store.set_optimizer("sgd")
        store.save_checkpoint(tmp_path / "weights")
    with Run(tmp_path, {"GRADWIRE_ON_FAILURE": "continue"}, workers=1, servers=1) as job:
        program = (
            "import gradwire as gw, numpy as np\n"
            "for name in ('dist_async', 'allreduce_mpi'):\n"
            "    try: gw.kv.create(name)\n"
            "    except ValueError as error: print(error)\n"
            "kv = gw.kv.create('dist_sync')\n"
            "try: kv.set_optimizer('sgd', learning_rate=0.1)\n"
            "except ValueError as error: print(error)\n"
            "kv.init('w', np.zeros(3, np.float32))\n"
            f"try: kv.load_checkpoint({str(tmp_path / 'weights')!r})\n"
            "except ValueError as error: print(error)\n"
            "w = np.ones(3, np.float32)\n"
            "kv.pushpull('w', w)\n"
            "print('sums are', w, kv.optimizer)\n"
        )
        job.launch([sys.executable, "-c", program])
        ended = job.end(PATIENCE)
    assert ended.code == 0, str(ended)
    for words in (
        "'dist_async'): on_failure=continue",
        "'allreduce_mpi'): on_failure=continue",
        "set_optimizer: this job goes on without workers that die",
        "load_checkpoint: this job goes on without workers that die",
        "sums are [1. 1. 1.] None",
    ):
        assert words in ended.out, str(ended)
