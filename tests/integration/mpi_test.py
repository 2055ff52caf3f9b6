"""Jobs over MPI, started by mpirun: the bits of every other store, and how they end."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from integration.mpi_jobs import Mpi, mpirun
from integration.processes import NOTICE_SECONDS, Job, agreed, assert_gone, python, run_to_the_end

CODECS = [
    *("none", "fp16", "2bit:threshold=0.5", "2bit:threshold=0.5,reply=2bit"),
    *("2bit:threshold=auto", "2bit:threshold=auto,reply=2bit"),
]


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_peers_over_mpi_give_what_servers_give(tmp_path: Path) -> None:
    arguments = ("steps=4", "sizes=large", f"codecs={';'.join(CODECS)}")
    by_servers = run_to_the_end(
        tmp_path / "servers", python("sums_worker.py", "store=dist_sync", *arguments), workers=3
    )
    (tmp_path / "mpi").mkdir()
    over_mpi = mpirun(tmp_path / "mpi", python("sums_worker.py", "store=dist_sync_mpi", *arguments), ranks=3)
    assert agreed(over_mpi, 3) == agreed(by_servers, 3)


def test_hosts_that_sum_first_over_mpi_give_what_their_sums_give(tmp_path: Path) -> None:
    arguments = ("steps=4", "sizes=large", "codecs=2bit:threshold=auto;none")
    flat = run_to_the_end(tmp_path / "flat", python("sums_worker.py", *arguments, "sums_of=0,1/2,3"))
    (tmp_path / "mpi").mkdir()
    on_its_host = ["sh", "-c", 'GRADWIRE_HOST_ID=$((OMPI_COMM_WORLD_RANK / 2)) exec "$@"', "sh"]
    command = [*on_its_host, *python("sums_worker.py", "store=dist_sync_mpi", *arguments)]
    over_mpi = mpirun(tmp_path / "mpi", command, ranks=4, GRADWIRE_HIERARCHY="host")
    assert agreed(over_mpi, 4) == agreed(flat, 2)


@pytest.mark.parametrize("code_sums", ["auto", "integers"])
def test_mpi_sums_codes_to_the_same_bits(code_sums: str, tmp_path: Path) -> None:
    """Dense sums are in MPI's own order: with three ranks, only those of codes are the same to the bit."""
    lossy = [codec for codec in CODECS if codec.startswith("2bit")] + ["2bit:threshold=auto,reply=fp32"]
    arguments = ("steps=4", "sizes=large", f"codecs={';'.join(lossy)}")
    by_servers = run_to_the_end(
        tmp_path / "servers", python("sums_worker.py", "store=dist_sync", *arguments), workers=3
    )
    (tmp_path / "mpi").mkdir()
    by_mpi = mpirun(
        tmp_path / "mpi",
        python("sums_worker.py", "store=allreduce_mpi", *arguments),
        ranks=3,
        GRADWIRE_CODE_SUMS=code_sums,
    )
    assert agreed(by_mpi, 3) == agreed(by_servers, 3)


def test_ranks_that_would_sum_codes_differently_are_told_so(tmp_path: Path) -> None:
    program = """
import os
os.environ["GRADWIRE_CODE_SUMS"] = "gather" if os.environ["OMPI_COMM_WORLD_RANK"] == "0" else "integers"
import gradwire
gradwire.kv.create("allreduce_mpi")
"""
    ended = mpirun(tmp_path, script(program))
    assert ended.code != 0
    assert "worker 0 has code_sums=gather, worker 1 has code_sums=integers" in ended.err, str(ended)


def test_mpi_sums_dense_gradients(tmp_path: Path) -> None:
    """Of two ranks the order does not matter."""
    arguments = ("steps=4", "sizes=large", "codecs=none")
    by_servers = run_to_the_end(tmp_path / "servers", python("sums_worker.py", "store=dist_sync", *arguments))
    (tmp_path / "mpi").mkdir()
    by_mpi = mpirun(tmp_path / "mpi", python("sums_worker.py", "store=allreduce_mpi", *arguments))
    assert agreed(by_mpi, 2) == agreed(by_servers, 2)


@pytest.mark.parametrize("store", ["dist_sync_mpi", "allreduce_mpi"])
def test_a_killed_rank_ends_the_job_and_is_named(store: str, tmp_path: Path) -> None:
    endless = python(
        "sums_worker.py", f"store={store}", "steps=100000", "codecs=2bit:threshold=0.5", "pause=0.01"
    )
    with Mpi(tmp_path, {"GRADWIRE_LIVENESS_TIMEOUT": "5s"}, ranks=3) as job:
        job.launch(endless)
        job.wait_until_training(3)
        everything = job.all_pids()
        os.kill(job.pid_of(1), signal.SIGKILL)
        ended = job.launcher.ended(NOTICE_SECONDS)
        assert_gone(everything)
    assert ended.code != 0, str(ended)
    assert "process rank 1" in ended.err or "worker 1" in ended.err, str(ended)


def test_a_rank_that_fails_is_told_by_name_on_stderr(tmp_path: Path) -> None:
    program = """
import gradwire, numpy as np
kv = gradwire.kv.create("dist_sync_mpi")
kv.init(0, np.zeros(10, np.float32))
if kv.rank == 1:
    raise RuntimeError("rank 1 has a bug")
kv.pushpull(0, np.ones(10, np.float32), out=np.zeros(10, np.float32))
"""
    ended = mpirun(tmp_path, script(program), ranks=3)
    assert ended.code != 0
    assert "rank 1 has a bug" in ended.err, str(ended)


def test_who_is_done_early_waits_for_the_others(tmp_path: Path) -> None:
    program = """
import gradwire, time
kv = gradwire.kv.create("dist_sync_mpi")
kv.barrier()
if kv.rank == 1:
    time.sleep(3)
began = time.monotonic()
kv.close()
print({"rank": kv.rank, "waited": time.monotonic() - began}, flush=True)
"""
    began = time.monotonic()
    ended = mpirun(tmp_path, script(program), ranks=3)
    assert ended.code == 0, str(ended)
    assert ended.out.count("waited") == 3
    assert time.monotonic() - began > 3
    assert ended.err.splitlines() == [
        "gradwire: store 'dist_sync_mpi' of 3 workers, started by mpirun (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)"
    ]


def test_mpi4py_and_gradwire_share_one_mpi(tmp_path: Path) -> None:
    program = """
from mpi4py import MPI
import gradwire, numpy as np
kv = gradwire.kv.create("dist_sync_mpi")
assert kv.rank == MPI.COMM_WORLD.rank
kv.init(0, np.zeros(1000, np.float32))
out = np.zeros(1000, np.float32)
for step in range(20):
    total = MPI.COMM_WORLD.allreduce(1)
    kv.pushpull(0, np.ones(1000, np.float32), out=out)
assert out[0] == total == kv.num_workers == 2
kv.close()
MPI.COMM_WORLD.Barrier()
"""
    ended = mpirun(tmp_path, script(program))
    assert ended.code == 0, str(ended)


def test_an_mpi4py_of_too_low_a_level_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    program = """
import mpi4py
mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI
import gradwire
gradwire.kv.create("dist_sync_mpi")
"""
    ended = mpirun(tmp_path, script(program), ranks=1)
    assert ended.code != 0
    assert "initialised MPI with MPI_THREAD_SERIALIZED" in ended.err, str(ended)
    assert "mpi4py.rc.thread_level" in ended.err, str(ended)


def test_ranks_of_different_stores_are_told_so(tmp_path: Path) -> None:
    program = """
import gradwire, os
rank = os.environ["OMPI_COMM_WORLD_RANK"]
gradwire.kv.create("dist_sync_mpi" if rank == "0" else "allreduce_mpi")
"""
    ended = mpirun(tmp_path, script(program))
    assert ended.code != 0
    assert "every rank must run the same version and make the same calls" in ended.err, str(ended)


def test_without_mpirun_a_job_of_several_is_an_error_that_says_so(tmp_path: Path) -> None:
    program = "import gradwire; gradwire.kv.create('dist_sync_mpi')"
    with Job(tmp_path, {}) as job:
        ended = job.start(("worker", 0), script(program), {"RANK": "0", "WORLD_SIZE": "2"}).ended(60)
    assert ended.code == 1
    assert "this process is alone in MPI's world, though its job has 2 workers" in ended.err, str(ended)
    assert "mpirun -np 2 --bind-to none" in ended.err


def test_alone_it_is_a_job_of_one(tmp_path: Path) -> None:
    command = python("sums_worker.py", "store=dist_sync_mpi", "steps=2")
    with Job(tmp_path, {}) as job:
        ended = job.start(("worker", 0), command).ended(60)
    assert ended.code == 0, str(ended)
    assert ended.records()[0]["rank"] == 0
