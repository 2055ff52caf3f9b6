"""A process of a running job dies, stops, sleeps or never comes: all others end in time and say who it was."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from integration.processes import (
    NOTICE_SECONDS,
    SCHEDULER,
    ByHand,
    Member,
    Run,
    assert_gone,
    names,
    python,
    run_to_the_end,
)

ENDLESS = python("sums_worker.py", "steps=100000", "codecs=2bit:threshold=0.5", "pause=0.01")
MEMBERS: list[Member] = [SCHEDULER, ("server", 0), ("server", 1), ("worker", 0), ("worker", 1)]
QUICK = {"GRADWIRE_LIVENESS_TIMEOUT": "2s"}
each_member = pytest.mark.parametrize("victim", MEMBERS, ids=[f"{role} {rank}" for role, rank in MEMBERS])


@each_member
def test_kill_by_hand(victim: Member, tmp_path: Path) -> None:
    with ByHand(tmp_path, {}) as job:
        job.start_all(ENDLESS)
        job.wait_until_training(2)
        os.kill(job.pids()[victim], signal.SIGKILL)
        ended = job.end(NOTICE_SECONDS)
        assert_gone(list(job.pids().values()))
    assert set(ended) == set(MEMBERS)
    for member, process in ended.items():
        if member != victim:
            assert process.code > 0, str(process)  # by itself, not by a signal
            assert names(process.err, victim), str(process)


def test_a_worker_of_dist_async_that_is_killed_holds_nobody_to_its_bound(tmp_path: Path) -> None:
    """With a bound of 0 the others wait for its next push, which does not come."""
    victim: Member = ("worker", 1)
    words = python("sums_worker.py", "store=dist_async", "optimizer=test", "steps=100000", "pause=0.01")
    with Run(tmp_path, {"GRADWIRE_STALENESS_BOUND": "0"}, workers=3) as job:
        job.launch(words)
        job.wait_until_training(3)
        everything = job.all_pids()
        os.kill(job.pids()[victim], signal.SIGKILL)
        ended = job.end(NOTICE_SECONDS)
        assert_gone(everything)
    assert ended.code == 128 + signal.SIGKILL, str(ended)
    assert_all_named(ended.err, victim)


@each_member
def test_kill_under_the_launcher(victim: Member, tmp_path: Path) -> None:
    with Run(tmp_path, {}) as job:
        job.launch(ENDLESS)
        job.wait_until_training(2)
        pids = job.pids()
        everything = job.all_pids()
        assert set(pids) == set(MEMBERS)
        assert set(pids.values()) <= set(everything)
        os.kill(pids[victim], signal.SIGKILL)
        ended = job.end(NOTICE_SECONDS)
        assert_gone(everything)
    assert ended.code == 128 + signal.SIGKILL, str(ended)
    assert_all_named(ended.err, victim)


def assert_all_named(err: str, victim: Member) -> None:
    """The launcher says how the victim ended, and each other process names it on its own stderr."""
    for role, rank in MEMBERS:
        label = role if (role, rank) == SCHEDULER else f"{role} {rank}"
        own = "\n".join(line for line in err.splitlines() if line.startswith(f"[{label}]"))
        launcher = "\n".join(line for line in err.splitlines() if line.startswith("gradwire: "))
        if (role, rank) != victim:
            assert names(own, victim), f"{label} does not name {victim}:\n{err}"
        assert names(launcher, victim), f"the launcher does not name {victim}:\n{err}"


@each_member
def test_stop_under_the_launcher(victim: Member, tmp_path: Path) -> None:
    """A stopped process closes no connection, so it is found by its silence; the launcher removes it."""
    with Run(tmp_path, QUICK) as job:
        job.launch(ENDLESS)
        job.wait_until_training(2)
        everything = job.all_pids()
        os.kill(job.pids()[victim], signal.SIGSTOP)
        ended = job.end(NOTICE_SECONDS)
        assert_gone(everything)
    assert ended.code not in (0, 128 + signal.SIGINT), str(ended)
    assert_all_named(ended.err, victim)
    assert "stopped (SIGSTOP)" in ended.err, str(ended)


@pytest.mark.parametrize("victim", [SCHEDULER, ("server", 1), ("worker", 0)], ids=str)
def test_stop_by_hand(victim: Member, tmp_path: Path) -> None:
    with ByHand(tmp_path, QUICK) as job:
        job.start_all(ENDLESS)
        job.wait_until_training(2)
        stopped = job.members.pop(victim)
        stopped.process.send_signal(signal.SIGSTOP)
        try:
            ended = job.end(NOTICE_SECONDS)
        finally:
            stopped.process.kill()
            stopped.process.wait()
    for process in ended.values():
        assert process.code > 0, str(process)
        assert names(process.err, victim), str(process)


def sleep_with_the_lock(folder: Path, seconds: float, liveness: str) -> None:
    command = python("sums_worker.py", f"sleep={seconds:g}")
    ended = run_to_the_end(folder, command, seconds=seconds + 60, GRADWIRE_LIVENESS_TIMEOUT=liveness)
    assert ended.code == 0, str(ended)
    assert [record["rank"] for record in sorted(ended.records(), key=lambda r: str(r["rank"]))] == [0, 1]


def test_a_worker_may_sleep_with_pythons_lock_held(tmp_path: Path) -> None:
    sleep_with_the_lock(tmp_path, 8, "2s")


@pytest.mark.soak
def test_a_worker_may_sleep_90_seconds_with_pythons_lock_held(tmp_path: Path) -> None:
    sleep_with_the_lock(tmp_path, 90, "5s")


def test_a_server_that_never_comes_is_named(tmp_path: Path) -> None:
    with ByHand(tmp_path, {"GRADWIRE_RENDEZVOUS_TIMEOUT": "3s"}) as job:
        job.start_scheduler()
        job.start_server(0)
        for rank in range(2):
            job.start_worker(rank, ENDLESS)
        ended = job.end(3 + NOTICE_SECONDS)
    for process in ended.values():
        assert process.code > 0, str(process)
        assert names(process.err, ("server", 1)), str(process)
        assert not names(process.err, ("server", 0)), str(process)
    assert "TimeoutError" in ended["worker", 0].err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_ends_all(number: signal.Signals, tmp_path: Path) -> None:
    with Run(tmp_path, {}) as job:
        job.launch(ENDLESS)
        job.wait_until_training(2)
        everything = job.all_pids()
        job.launcher.process.send_signal(number)
        ended = job.end(NOTICE_SECONDS)
        assert_gone(everything)
    assert ended.code == 128 + number, str(ended)


def test_the_launchers_own_death_leaves_nothing(tmp_path: Path) -> None:
    with Run(tmp_path, {}) as job:
        job.launch(ENDLESS)
        job.wait_until_training(2)
        everything = job.all_pids()
        job.launcher.process.kill()
        job.end(NOTICE_SECONDS)
        assert_gone(everything, NOTICE_SECONDS)


def test_a_worker_that_fails_ends_the_job_with_its_own_code(tmp_path: Path) -> None:
    program = (
        "import os, sys, time, gradwire, numpy as np\n"
        "kv = gradwire.kv.create('dist_sync')\n"
        "kv.init('w', np.zeros(4, np.float32))\n"
        "if kv.rank == 1: os._exit(7)\n"
        "kv.pushpull('w', np.ones(4, np.float32))\n"
    )
    ended = run_to_the_end(tmp_path, [sys.executable, "-c", program], seconds=60)
    assert ended.code == 7, str(ended)
    assert names(ended.err, ("worker", 1)), str(ended)
