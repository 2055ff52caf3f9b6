"""Horovod's elastic scripts in jobs that go on without ranks that are killed, and take in new ones: kill -9."""

from __future__ import annotations

import os
import signal
from pathlib import Path

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
from integration.processes import wait_until

PROGRAM = "horovod_elastic_worker.py"
each_kind = pytest.mark.parametrize(("servers", "codec"), [(0, "none"), (2, "2bit:threshold=0.5")])


def launch(job: ElasticRun, servers: int, *flags: str, **arguments: object) -> None:
    job.go(servers, flags, worker(PROGRAM, **arguments))


@each_kind
def test_the_others_go_on_without_a_killed_rank(servers: int, codec: str, tmp_path: Path) -> None:
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        launch(job, servers, "--min-np", "2", steps=120, codec=codec)
        ended = job.end_after_a_kill(1)
    assert ended.code == 0, str(ended)
    found = records(ended)
    assert_one_model(found, workers=2, steps=120)
    assert [record["first_rank"] for record in found] == [0, 2]
    assert {record["generation"] for record in found} == {2}
    assert [record["sizes"] for record in found] == [[2], [2]], "reset callbacks see the new size"
    assert {record["losses"] for record in found} == {120}, "no step is lost and none is counted twice"
    assert found[0]["loss"] < 20.0  # 37 before the first step


def test_another_takes_the_place_of_a_killed_rank_and_the_state_is_the_survivors(tmp_path: Path) -> None:
    with ElasticRun(tmp_path, QUICK, workers=2) as job:
        launch(job, 0, "--restarts", "1", steps=4000)
        pid = job.worker_pid(1)
        job.await_steps(pid, 10)
        job.kill(0)  # rank 0 has what Horovod gives to all
        wait_until(lambda: job.is_again(pid, workers=2), PATIENCE, "two ranks to train again")
        os.kill(job.launcher.process.pid, signal.SIGTERM)
        job.end(PATIENCE)
    steps = [line[3] for line in job.lines(pid)]
    assert sorted(set(steps)) == steps, "the survivor's steps go on"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_rank_is_added_to_a_running_job(workers: int, tmp_path: Path) -> None:
    """One rank alone sums nothing until the other comes."""
    with ElasticRun(tmp_path, QUICK, workers=workers) as job:
        launch(job, 0, steps=400, pause=0.1, until=workers + 1)
        pid = job.worker_pid(0)
        job.await_steps(pid, 10)
        added = job.add(worker(PROGRAM, steps=400, pause=0.1, until=workers + 1))
        wait_until(lambda: job.is_again(pid, workers=workers + 1), PATIENCE, "the newcomer to train")
        more, ended = added.ended(PATIENCE), job.end(PATIENCE)
    assert (more.code, ended.code) == (0, 0), f"{more}\n{ended}"
    assert_one_model(records(ended, more), workers=workers + 1, steps=400)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raise", "ended with OSError: no such file of examples"),
        ("exit", "ended with SystemExit: 3"),
        ("shutdown", "ended with OSError: no such file of examples"),
    ],
)
def test_a_rank_with_an_error_of_its_own_is_named_to_the_others(how: str, told: str, tmp_path: Path) -> None:
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        launch(job, 0, steps=60, fail="1:20", how=how)
        ended = job.end(PATIENCE)
    assert ended.code == 0, str(ended)
    assert_one_model(records(ended), workers=2, steps=60)
    assert told in ended.err, str(ended)


def test_a_rank_whose_reset_callback_raises_is_named_to_the_others(tmp_path: Path) -> None:
    with ElasticRun(tmp_path, QUICK, workers=3) as job:
        launch(job, 0, steps=60, fail="1:20", reset=0)
        ended = job.end(PATIENCE)
    assert ended.code == 0, str(ended)
    assert_one_model(records(ended), workers=1, steps=60)
    assert "ended with OSError: no such file of sizes" in ended.err, str(ended)


def test_where_too_few_are_left_the_job_fails(tmp_path: Path) -> None:
    with ElasticRun(tmp_path, QUICK, workers=2) as job:
        launch(job, 0, "--min-np", "2", steps=100000)
        assert_too_few(job.end_after_a_kill(1))
