"""Workers of one host sum first: what it changes in a job's bits (nothing), on its links, and when one dies."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from gradwire.launch.child import Line
from gradwire.launch.supervisor import run_job
from gradwire.netlab import NetLab
from integration.hosts import needs_hosts
from integration.processes import (
    NOTICE_SECONDS,
    ByHand,
    Run,
    assert_gone,
    clean_environment,
    names,
    python,
    run_to_the_end,
)

WORKERS = 4
HOSTS = ("first", "first", "second", "second")  # of each rank
STORES = [pytest.param("dist_sync", 2, id="servers"), pytest.param("allreduce", 0, id="peers")]
BYTES_PER_STEP = 4 * (1 + 130_001 + 1_100_000 + 65_536)  # of sums_worker's large gradients
CODECS = "2bit:threshold=auto;2bit:threshold=0.5;none"


@dataclass
class TwoHosts(ByHand):
    """A job of two workers on each of two hosts, which are names only: all is on loopback."""

    workers: int = WORKERS

    def start_worker(self, rank: int, command: list[str], variables: dict[str, str] | None = None) -> None:
        host = {"GRADWIRE_HIERARCHY": "host", "GRADWIRE_HOST_ID": HOSTS[rank]}
        super().start_worker(rank, command, host | (variables or {}))


def start(folder: Path, servers: int, command: list[str]) -> TwoHosts:
    job = TwoHosts(folder, {}, servers=servers)
    job.start_all(command)
    return job


@pytest.mark.parametrize(("store", "servers"), STORES)
@pytest.mark.parametrize("mode", ["pushpull", "push"])
def test_bits_are_those_of_a_flat_job_whose_ranks_push_the_hosts_sums(
    store: str, servers: int, mode: str, tmp_path: Path
) -> None:
    """Rank order is the order of the sums, and the hosts' order that of their first ranks, so even dense ones agree."""
    options = [f"store={store}", "steps=4", "sizes=large", f"codecs={CODECS}", f"mode={mode}"]
    flat = run_to_the_end(
        tmp_path / "flat", python("sums_worker.py", *options, "sums_of=0,1/2,3"), servers=servers
    )
    assert flat.code == 0, str(flat)
    (tmp_path / "hosts").mkdir()
    with start(tmp_path / "hosts", servers, python("sums_worker.py", *options)) as job:
        ended = job.end(90)
    expected = flat.records()[0]["hashes"]
    for (role, _), process in ended.items():
        assert process.code == 0, str(process)
        if role == "worker":
            assert process.records()[0]["hashes"] == expected, str(process)


def sent_by_a_job(lab: NetLab, folder: Path, hierarchy: str, store: str, steps: int) -> list[int]:
    """Bytes that left each host while two workers on each trained, beside one server each if the store has them."""
    lines: list[Line] = []
    before = [lab.host(index).counters().sent_bytes for index in range(2)]
    folder.mkdir()
    result = run_job(
        python("sums_worker.py", f"store={store}", f"steps={steps}", "sizes=large", "codecs=none"),
        WORKERS,
        2 if store == "dist_sync" else 0,
        env=clean_environment(folder, {"GRADWIRE_HIERARCHY": hierarchy}),
        placement=lambda role, rank: lab.host(rank // 2 if role == "worker" else rank),
        output=lines.append,
        timeout=300,
    )
    assert result.exit_code == 0, "\n".join(line.text for line in lines)
    return [lab.host(index).counters().sent_bytes - before[index] for index in range(2)]


def sent_per_step(lab: NetLab, folder: Path, hierarchy: str, store: str) -> list[float]:
    """What a longer job sends more than a short one: without the rendezvous and the first values."""
    short, long = 3, 13
    few = sent_by_a_job(lab, folder / f"{hierarchy} {short}", hierarchy, store, short)
    many = sent_by_a_job(lab, folder / f"{hierarchy} {long}", hierarchy, store, long)
    return [(more - less) / (long - short) for more, less in zip(many, few, strict=True)]


@needs_hosts
@pytest.mark.parametrize("store", ["dist_sync", "allreduce"])
def test_bytes_that_leave_each_host_halve(store: str, tmp_path: Path) -> None:
    """Half of a host's sum goes to servers on the other, which sends half of its own for those here."""
    with NetLab(hosts=2) as lab:
        flat = sent_per_step(lab, tmp_path, "off", store)
        summed = sent_per_step(lab, tmp_path, "host", store)
    for index in range(2):
        assert 0.97 <= summed[index] / BYTES_PER_STEP <= 1.05, (flat, summed)
        assert 1.95 <= flat[index] / summed[index] <= 2.05, (flat, summed)


@pytest.mark.parametrize(("store", "servers"), STORES)
@pytest.mark.parametrize("victim", [0, 2, 3])
def test_a_killed_worker_is_named_by_all_others(
    store: str, servers: int, victim: int, tmp_path: Path
) -> None:
    endless = python(
        "sums_worker.py", f"store={store}", "steps=100000", "codecs=2bit:threshold=0.5", "pause=0.01"
    )
    with start(tmp_path, servers, endless) as job:
        job.wait_until_training(WORKERS)
        os.kill(job.pids()["worker", victim], signal.SIGKILL)
        ended = job.end(NOTICE_SECONDS)
        assert_gone(list(job.pids().values()))
    for member, process in ended.items():
        if member != ("worker", victim):
            assert process.code > 0, str(process)
            assert names(process.err, ("worker", victim)), str(process)


@pytest.mark.parametrize("early", [0, 1])
def test_workers_leave_one_after_the_other(early: int, tmp_path: Path) -> None:
    """One is done long before the others, which train no more but are still there; nobody is missed."""
    program = (
        "import time, gradwire, numpy as np\n"
        "kv = gradwire.kv.create('allreduce')\n"
        "kv.init('w', np.zeros(200_000, np.float32))\n"
        "kv.pushpull('w', np.ones(200_000, np.float32))\n"
        f"if kv.rank != {early}: time.sleep(4)\n"
        "kv.close()\n"
    )
    with start(tmp_path, 0, [sys.executable, "-c", program]) as job:
        ended = job.end(60)
    for process in ended.values():
        assert process.code == 0, str(process)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_ends_all(number: signal.Signals, tmp_path: Path) -> None:
    endless = python("sums_worker.py", "store=allreduce", "steps=100000", "pause=0.01")
    with Run(tmp_path, {"GRADWIRE_HIERARCHY": "host"}, workers=3, servers=0) as job:
        job.launch(endless)
        job.wait_until_training(3)
        everything = job.all_pids()
        job.launcher.process.send_signal(number)
        ended = job.end(NOTICE_SECONDS)
        assert_gone(everything)
    assert ended.code == 128 + number, str(ended)


@pytest.mark.parametrize("interrupted", [0, 1], ids=["leader", "other"])
def test_ctrl_c_in_one_worker_interrupts_its_wait(interrupted: int, tmp_path: Path) -> None:
    program = (
        "import os, pathlib, time, gradwire, numpy as np\n"
        "kv = gradwire.kv.create('allreduce')\n"
        "kv.init('w', np.zeros(4, np.float32))\n"
        "(pathlib.Path(os.environ['TEST_FOLDER']) / f'worker{kv.rank}.running').touch()\n"
        "if kv.rank == 2: time.sleep(5); kv.barrier()\n"  # it never pushes, so the others wait
        "kv.pushpull('w', np.ones(4, np.float32))\n"
    )
    with start(tmp_path, 0, [sys.executable, "-c", program]) as job:
        job.wait_until_training(WORKERS)
        time.sleep(0.5)
        job.members["worker", interrupted].process.send_signal(signal.SIGINT)
        ended = {rank: job.members["worker", rank].ended(NOTICE_SECONDS) for rank in range(WORKERS)}
    assert "KeyboardInterrupt" in ended[interrupted].err, str(ended[interrupted])
    first = ended[2] if interrupted else ended[1]  # to miss it
    assert names(first.err, ("worker", interrupted)), str(first)
    assert all(process.code != 0 for process in ended.values()), ended


def test_ranks_that_differ_are_told_so(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "if os.environ['GRADWIRE_RANK'] == '1': os.environ['GRADWIRE_HIERARCHY'] = 'host'\n"
        "import gradwire\n"
        "gradwire.kv.create('allreduce')\n"
    )
    ended = run_to_the_end(tmp_path, [sys.executable, "-c", program], servers=0)
    assert ended.code == 1
    assert "worker 0 has nothing, worker 1 has hierarchy=host" in ended.err, str(ended)


@pytest.mark.parametrize(("store", "instead"), [("allreduce_mpi", "dist_sync_mpi"), ("nccl", "allreduce")])
def test_a_store_whose_library_sums_refuses_it(store: str, instead: str, tmp_path: Path) -> None:
    program = f"import gradwire; gradwire.kv.create({store!r})"
    ended = run_to_the_end(
        tmp_path, [sys.executable, "-c", program], workers=1, servers=0, GRADWIRE_HIERARCHY="host"
    )
    assert ended.code == 1
    assert f"use the store {instead!r}, or leave GRADWIRE_HIERARCHY out" in ended.err, str(ended)
