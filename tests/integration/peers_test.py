"""Jobs without servers: every worker sums a share. They meet by a scheduler, or at rank 0 alone."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from gradwire.launch.rendezvous import free_port
from integration.processes import (
    NOTICE_SECONDS,
    START_SECONDS,
    Job,
    Run,
    assert_gone,
    names,
    python,
    run_to_the_end,
    wait_until,
)

ENDLESS = python(
    "sums_worker.py", "store=allreduce", "steps=100000", "codecs=2bit:threshold=0.5", "pause=0.01"
)


def start_as_torchrun_does(
    job: Job, workers: int, command: list[str], own: dict[int, dict[str, str]] | None = None
) -> None:
    at = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port("127.0.0.1")), "WORLD_SIZE": str(workers)}
    for rank in reversed(range(workers)):
        job.start(("worker", rank), command, at | {"RANK": str(rank)} | (own or {}).get(rank, {}))


def test_rank_0_serves_the_rendezvous_where_nobody_else_does(tmp_path: Path) -> None:
    command = python("sums_worker.py", "store=allreduce", "codecs=none;2bit:threshold=auto,reply=2bit")
    with Job(tmp_path, {}) as job:
        start_as_torchrun_does(job, 3, command)
        ended = {rank: job.members["worker", rank].ended(60) for rank in range(3)}
    for process in ended.values():
        assert process.code == 0, str(process)
    hashes = [process.records()[0]["hashes"] for process in ended.values()]
    assert hashes[0] == hashes[1] == hashes[2]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_is_named_by_the_others(victim: int, tmp_path: Path) -> None:
    with Job(tmp_path, {}) as job:
        start_as_torchrun_does(job, 3, ENDLESS)
        job.wait_until_training(3)
        os.kill(job.pids()["worker", victim], signal.SIGKILL)
        ended = {member: started.ended(NOTICE_SECONDS) for member, started in job.members.items()}
    for (role, rank), process in ended.items():
        if rank == victim:
            continue
        assert process.code > 0, str(process)
        assert names(process.err, (role, victim)), str(process)


LATER = """
import os, pathlib, sys, time, gradwire
kv = gradwire.kv.create("allreduce")
kv.barrier()
while kv.rank and not (pathlib.Path(os.environ["TEST_FOLDER"]) / "go on").exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("end", "code", "text"),
    [
        ("raise OSError('no such file of images')", 1, "OSError: no such file of images"),
        ("sys.exit('no such file of images')", 1, "no such file of images"),
        ("sys.exit(3)", 3, ""),
    ],
)
def test_an_error_ends_rank_0_whatever_the_others_do(end: str, code: int, text: str, tmp_path: Path) -> None:
    program = LATER + f"if kv.rank == 0: {end}\nkv.barrier()\n"
    with Job(tmp_path, {}) as job:
        start_as_torchrun_does(job, 2, [sys.executable, "-c", program])
        first = job.members["worker", 0].ended(START_SECONDS)
        (tmp_path / "go on").touch()
        other = job.members["worker", 1].ended(NOTICE_SECONDS)
    assert first.code == code, str(first)
    assert text in first.err, str(first)
    assert "the job ends with it" in first.err, str(first)
    assert other.code == 1, str(other)
    assert "TransportError" in other.err, str(other)  # and it does not wait


@pytest.mark.parametrize("end", ["", "sys.exit()", "sys.exit(0)"])
def test_rank_0_that_is_done_serves_the_others_to_their_end(end: str, tmp_path: Path) -> None:
    with Job(tmp_path, {}) as job:
        start_as_torchrun_does(job, 2, [sys.executable, "-c", LATER + end])
        first = job.members["worker", 0]
        wait_until(lambda: "all is done here" in first.err.read_text(), START_SECONDS, "rank 0 to be done")
        (tmp_path / "go on").touch()
        ended = [started.ended(NOTICE_SECONDS) for started in job.members.values()]
    assert [process.code for process in ended] == [0, 0], [str(process) for process in ended]


def test_a_killed_worker_ends_the_job_under_the_launcher(tmp_path: Path) -> None:
    with Run(tmp_path, {}, workers=3, servers=None) as job:
        job.launch(ENDLESS)
        job.wait_until_training(3)
        everything = job.all_pids()
        os.kill(job.pids()["worker", 1], signal.SIGKILL)
        ended = job.end(NOTICE_SECONDS)
        assert_gone(everything)
    assert ended.code == 128 + signal.SIGKILL, str(ended)
    for rank in (0, 2):
        own = "\n".join(line for line in ended.err.splitlines() if line.startswith(f"[worker {rank}]"))
        assert names(own, ("worker", 1)), str(ended)
        assert "server" not in own.splitlines()[-1], str(ended)


def test_a_worker_that_cannot_listen_ends_the_others_at_once(tmp_path: Path) -> None:
    """They had waited for it as long as they may."""
    command = python("sums_worker.py", "store=allreduce")
    with Job(tmp_path, {"GRADWIRE_RENDEZVOUS_TIMEOUT": "3600s"}) as job:
        start_as_torchrun_does(job, 2, command, {1: {"GRADWIRE_BIND_HOST": "192.0.2.1"}})
        ended = {rank: job.members["worker", rank].ended(START_SECONDS) for rank in range(2)}
    assert [process.code for process in ended.values()] == [1, 1], str(ended)
    assert "worker 1: zmq: cannot listen on tcp://192.0.2.1" in ended[0].err, str(ended[0])
    assert "cannot listen on tcp://192.0.2.1" in ended[1].err, str(ended[1])


def test_dedicated_servers_are_refused(tmp_path: Path) -> None:
    command = python("sums_worker.py", "store=allreduce")
    ended = run_to_the_end(tmp_path, command, servers=1)
    assert ended.code == 1
    assert "the job was started with 1 servers; start it without them (-s 0)" in ended.err, str(ended)


def test_without_a_job_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    with Job(tmp_path, {}) as job:
        program = "import gradwire; gradwire.kv.create('allreduce')"
        ended = job.start(("worker", 0), [sys.executable, "-c", program], {"MASTER_ADDR": "localhost"}).ended(
            30
        )
    assert ended.code == 1
    assert "MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE" in ended.err


def test_workers_of_different_stores_are_told_so(tmp_path: Path) -> None:
    program = (
        "import gradwire; from gradwire.settings import definitions; r = definitions.read().rank; "
        "gradwire.kv.create('allreduce' if r else 'dist_sync')"
    )
    ended = run_to_the_end(tmp_path, [sys.executable, "-c", program], servers=None)
    assert ended.code == 1
    assert "give every rank the same store" in ended.err, str(ended)
