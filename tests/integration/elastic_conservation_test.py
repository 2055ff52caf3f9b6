"""Nothing is lost in jobs that go on without workers that are killed, and take in new ones: real processes, kill -9.

What was given is what was delivered, what is owed, and what a dead worker took with it; and all ranks train with the
learning rate that a reset callback sets. Right values are those of one process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from integration.elastic_jobs import PATIENCE, QUICK, ElasticRun, records, worker
from integration.processes import Ended

PROGRAM = "conserving_worker.py"
TWO_BIT = "2bit:threshold=0.5"
VALUE, RATE = 0.75, 0.125  # that program's
each_door = pytest.mark.parametrize("door", ["kv", "torch", "horovod"])
each_optimizers_door = pytest.mark.parametrize("door", ["torch", "horovod"])


def after_a_kill(folder: Path, servers: int, **arguments: object) -> Ended:
    with ElasticRun(folder, QUICK, workers=3) as job:
        job.go(servers, ["--min-workers", "2"], worker(PROGRAM, steps=60, **arguments))
        ended = job.end_after_a_kill(1)
    assert ended.code == 0, str(ended)
    return ended


def with_a_newcomer(folder: Path, servers: int, **arguments: object) -> tuple[Ended, Ended]:
    command = worker(PROGRAM, steps=300, pause=0.1, until=3, **arguments)
    with ElasticRun(folder, QUICK, workers=2) as job:
        job.go(servers, [], command)
        job.await_steps(job.worker_pid(0), 10)
        added = job.add(command)
        newcomer, ended = added.ended(PATIENCE), job.end(PATIENCE)
    assert (newcomer.code, ended.code) == (0, 0), f"{newcomer}\n{ended}"
    return ended, newcomer


def assert_conserved(found: list[dict[str, Any]]) -> None:
    first = found[0]
    assert len({(record["given"], record["delivered"], record["lost"]) for record in found}) == 1, found
    owed = sum(record["owed"] for record in found)
    assert first["given"] == pytest.approx(first["delivered"] + first["lost"] + owed, rel=1e-5), found
    assert owed > 0, found
    assert {record["codec"].partition(",")[0] for record in found} == {TWO_BIT}, found


def assert_trained_as_one_process(found: list[dict[str, Any]]) -> None:
    """w -= rate * mean of the gradients, and all ranks give the same."""
    weight = -sum(RATE * workers * VALUE for workers in found[0]["sizes"])
    assert [record["weight"] for record in found] == pytest.approx([weight] * len(found), rel=1e-5)
    assert [record["rate"] for record in found] == [RATE * len(found)] * len(found)


@each_door
@pytest.mark.parametrize("servers", [0, 1])
def test_a_killed_workers_residual_is_all_that_is_lost(door: str, servers: int, tmp_path: Path) -> None:
    store = "dist_sync" if servers else "allreduce"
    found = records(after_a_kill(tmp_path, servers, door=door, store=store, codec=TWO_BIT))
    assert [record["sizes"][-1] for record in found] == [2, 2]
    assert found[0]["lost"] > 0
    assert_conserved(found)


@each_door
@pytest.mark.parametrize("reply", ["exact", "2bit"])
def test_where_a_worker_comes_nothing_is_lost(door: str, reply: str, tmp_path: Path) -> None:
    """Also not what servers have kept back: it goes into the workers' residuals before the servers end."""
    ended, newcomer = with_a_newcomer(
        tmp_path, 1, door=door, store="dist_sync", codec=f"{TWO_BIT},reply={reply}"
    )
    found = records(ended, newcomer)
    assert [record["sizes"][-1] for record in found] == [3, 3, 3]
    assert_conserved(found)


def test_what_servers_have_kept_back_is_told_to_be_lost_with_a_worker(tmp_path: Path) -> None:
    ended = after_a_kill(tmp_path, 1, door="kv", store="dist_sync", codec=f"{TWO_BIT},reply=2bit")
    assert "what servers had not sent yet of their replies (reply=2bit) is lost" in ended.err, str(ended)


@each_optimizers_door
def test_a_reset_callbacks_learning_rate_is_that_of_all_who_are_left(door: str, tmp_path: Path) -> None:
    found = records(after_a_kill(tmp_path, 0, door=door))
    assert [record["sizes"][-1] for record in found] == [2, 2]
    assert_trained_as_one_process(found)


@each_optimizers_door
def test_a_reset_callbacks_learning_rate_is_also_a_newcomers(door: str, tmp_path: Path) -> None:
    found = records(*with_a_newcomer(tmp_path, 0, door=door))
    assert [record["sizes"][-1] for record in found] == [3, 3, 3]
    assert_trained_as_one_process(found)
