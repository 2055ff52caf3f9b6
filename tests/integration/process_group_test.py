"""Ranks that the environment says nothing of: torch.multiprocessing starts them, and torch's process group is made with
explicit ranks. They had each trained alone, without a word."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from integration.processes import PROGRAMS, Ended, Job, Run, python, wait_until

SECONDS = 180  # torch is imported by each rank


def spawned(folder: Path, case: str, way: str) -> list[dict[str, Any]]:
    with Job(folder, {}) as job:
        ended = job.start(("run", 0), python("process_group_worker.py", case, way)).ended(SECONDS)
    assert ended.code == 0, str(ended)
    return sorted(ended.records(), key=lambda record: int(str(record["rank"])))


def test_front_ends_of_torch_horovod_and_byteps_take_the_groups_ranks(tmp_path: Path) -> None:
    """Rank r's gradient is r + 1, so the mean is 1.5, and 0.1 of it the step of all from rank 0's weight, 0."""
    for rank, record in enumerate(spawned(tmp_path, "optimizers", "file")):
        assert record == {"rank": rank, "weight": -0.15, "horovod": [rank, 2], "byteps": [rank, 2]}


def test_local_steps_and_hooks_take_them(tmp_path: Path) -> None:
    first, second = spawned(tmp_path, "local_steps", "store")
    assert first["store"] == ["allreduce", 0, 2]
    assert second["store"] == ["allreduce", 1, 2]
    assert first["weight"] == second["weight"] != 0.0


def test_a_store_created_by_name_takes_them(tmp_path: Path) -> None:
    for rank, record in enumerate(spawned(tmp_path, "named_store", "tcp")):
        assert record == {"rank": rank, "store": [rank, 2], "sum": [3.0]}


def test_a_hook_takes_them(tmp_path: Path) -> None:
    assert [record["gradient"] for record in spawned(tmp_path, "hook", "file")] == [1.5, 1.5]


def test_a_group_made_after_the_optimizer_is_refused_by_name(tmp_path: Path) -> None:
    for record in spawned(tmp_path, "late", "file"):
        assert len(record["errors"]) == 4, record
        for error in record["errors"]:
            assert "torch's process group has 2 ranks and was made after" in error
            assert "call torch.distributed.init_process_group() before" in error


SMALLER = """
import os, sys, torch.distributed as dist
import gradwire.torch
rank = int(os.environ["RANK"])
if rank < 2:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[2]}", rank=rank, world_size=2)
    try:
        gradwire.torch.HookState("none") if sys.argv[1] == "hook" else gradwire.torch.default_store()
    except ValueError as error:
        print("refused:", error, flush=True)
        sys.exit(3)
"""


@pytest.mark.parametrize("front_end", ["hook", "optimizer"])
def test_a_group_smaller_than_the_job_is_refused_at_once(front_end: str, tmp_path: Path) -> None:
    """Its ranks had waited for the rest of the job, who do not come."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    with Run(tmp_path, {"GRADWIRE_RENDEZVOUS_TIMEOUT": "3600s"}) as job:
        command = [
            str(PROGRAMS / "gradwire"),
            "run",
            "-n",
            "3",
            sys.executable,
            "-c",
            SMALLER,
            front_end,
            port,
        ]
        ended = job.start(("run", 0), command).ended(SECONDS)
    assert ended.code == 3, str(ended)
    for rank in range(2):
        told = f"this process is rank {rank} of 3 in gradwire's job and rank {rank} of 2 in torch's process group"
        assert told in ended.out, str(ended)


def torchrun(port: int, program: str, *options: str) -> list[str]:
    words = [
        "--nproc-per-node",
        "2",
        "--master-port",
        str(port),
        *options,
        "--no-python",
        sys.executable,
        "-c",
    ]
    return [sys.executable, "-m", "torch.distributed.run", *words, program]


def neighbours() -> tuple[int, int]:
    """A free port and the one after it, also free."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port, port + 1


FIRST = """
import gradwire, numpy, os, pathlib, time
kv = gradwire.kv.create("allreduce")
print("first joined", kv.rank, flush=True)
folder = pathlib.Path(os.environ["TEST_FOLDER"])
(folder / f"joined{kv.rank}").touch()
while not (folder / "go on").exists(): time.sleep(0.05)
sums = kv.collectives.all_reduce(numpy.ones(1, numpy.float32)).tolist()
os.write(1, f"first sums {sums}\\n".encode())
"""
SECOND = """
import gradwire.horovod.torch as hvd, os, torch
hvd.init()
sums = hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist()
os.write(1, f"second sums {sums} of {hvd.size()}\\n".encode())
"""


def test_two_jobs_at_neighbouring_ports_both_run(tmp_path: Path) -> None:
    """The first one's rendezvous was at the second one's MASTER_PORT. Neither makes a process group."""
    port, next_port = neighbours()
    with Job(tmp_path, {"OMP_NUM_THREADS": "1"}) as job:
        first = job.start(("run", 0), torchrun(port, FIRST))
        joined = [tmp_path / f"joined{rank}" for rank in range(2)]
        wait_until(lambda: all(file.exists() for file in joined), SECONDS, "the first job to have joined")
        second = job.start(("run", 1), torchrun(next_port, SECOND)).ended(SECONDS)
        (tmp_path / "go on").touch()
        ended = first.ended(SECONDS)
    assert second.code == 0, str(second)
    assert second.out.count("second sums [2.0] of 2") == 2, str(second)
    assert ended.code == 0, str(ended)
    assert ended.out.count("first sums [2.0]") == 2, str(ended)


RESTARTED = """
import gradwire, numpy, os, sys
kv = gradwire.kv.create("allreduce")
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
sums = kv.collectives.all_reduce(numpy.ones(1, numpy.float32)).tolist()
os.write(1, f"attempt {attempt} sums {sums}\\n".encode())  # print() writes words apart under -u
sys.exit(5 if attempt == "0" and kv.rank == 1 else 0)
"""


def test_a_job_that_torchrun_starts_anew_meets_anew(tmp_path: Path) -> None:
    """torchrun keeps its store, and what ranks of the first attempt have left there."""
    port, _ = neighbours()
    with Job(tmp_path, {"OMP_NUM_THREADS": "1"}) as job:
        ended = job.start(("run", 0), torchrun(port, RESTARTED, "--max-restarts", "1")).ended(SECONDS)
    assert ended.code == 0, str(ended)
    for attempt in range(2):
        assert ended.out.count(f"attempt {attempt} sums [2.0]") == 2, str(ended)


def alone(folder: Path, variables: dict[str, str]) -> Ended:
    program = "import gradwire.torch; print(gradwire.torch.default_store().type)"
    with Job(folder, variables) as job:
        return job.start(("worker", 0), [sys.executable, "-c", program], variables).ended(SECONDS)


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "HOROVOD_SIZE", "PMI_SIZE"])
def test_ranks_of_other_launchers_are_not_trained_alone(variable: str, tmp_path: Path) -> None:
    ended = alone(tmp_path, {variable: "4"})
    assert ended.code == 1, str(ended)
    assert f"gradwire.torch: the environment says 4 workers ({variable}) and not where they meet" in ended.err


def test_a_single_process_needs_nothing(tmp_path: Path) -> None:
    ended = alone(tmp_path, {"WORLD_SIZE": "1"})
    assert (ended.code, ended.out.strip()) == (0, "local"), str(ended)
