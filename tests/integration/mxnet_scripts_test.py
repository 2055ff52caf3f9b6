"""Old scripts, unchanged: under `gradwire run`, and in processes started by hand as MXNet's launch.py starts them."""

from __future__ import annotations

from pathlib import Path

import pytest
from gradwire.launch.rendezvous import free_port
from integration.mpi_jobs import mpirun
from integration.mxnet_environment import variables
from integration.processes import ByHand, Ended, Job, agreed, python, run_to_the_end

SCRIPT = str(Path(__file__).with_name("mxnet_old_script.py"))
LAST_READ = str(Path(__file__).with_name("mxnet_last_read_worker.py"))
DEATH = str(Path(__file__).with_name("mxnet_death_worker.py"))
OLD = python("mxnet_exec.py", "-m", "gradwire.mxnet", SCRIPT)
SECONDS = 480.0  # a job of four, where another one measures


@pytest.mark.parametrize(
    ("store", "servers", "codec"),
    [("dist_sync", 2, "2bit"), ("allreduce", 0, "none"), ("p3", 1, "2bit")],
)
def test_an_old_script_trains(tmp_path: Path, store: str, servers: int, codec: str) -> None:
    flags = ["--kv-store", store, "--gc-type", codec]
    ended = run_to_the_end(tmp_path, [*OLD, *flags], servers=servers, seconds=SECONDS, **variables(tmp_path))
    agreed(ended, 2, "weights")
    for record in ended.records():
        assert record["store"] == "gradwire.mxnet.store.KVStore"
        assert float(str(record["accuracy"])) > 0.9, str(ended)


def test_a_library_may_sum(tmp_path: Path) -> None:
    """MPI demands the same order on all ranks, which MXNet's engine does not keep: so exchanges wait."""
    ended = mpirun(tmp_path, [*OLD, "--kv-store", "allreduce_mpi"], seconds=SECONDS, **variables(tmp_path))
    agreed(ended, 2, "weights")
    assert all(float(str(record["accuracy"])) > 0.9 for record in ended.records()), str(ended)


def test_every_role_may_be_started_with_the_script(tmp_path: Path) -> None:
    """As launch.py does: the same command everywhere, and DMLC_ROLE says who is who."""
    job_variables = {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port("127.0.0.1")),
    }
    with Job(tmp_path, job_variables | variables(tmp_path)) as job:
        members = [("scheduler", 0), ("server", 0), ("worker", 0), ("worker", 1)]
        for member in members:
            command = [*OLD, "--kv-store", "dist_sync", "--gc-type", "2bit"]
            job.start(member, command, {"DMLC_ROLE": member[0]})
        ended = {member: job.members[member].ended(SECONDS) for member in members}
    assert [(member, end.code) for member, end in ended.items() if end.code != 0] == [], str(ended)
    workers = [ended["worker", rank].records() for rank in range(2)]
    assert [len(records) for records in workers] == [1, 1], str(ended)
    assert sorted(str(records[0]["rank"]) for records in workers) == ["0", "1"]
    assert workers[0][0]["weights"] == workers[1][0]["weights"]
    assert ended["server", 0].records() == []  # it never came as far as the script


def test_a_dead_worker_is_named_by_the_next_call(tmp_path: Path) -> None:
    ended: Ended = run_to_the_end(
        tmp_path, python("mxnet_exec.py", DEATH), seconds=SECONDS, **variables(tmp_path)
    )
    assert ended.code != 0
    (record,) = ended.records()
    assert record["rank"] == 0
    assert "worker 1" in str(record["said"]), str(ended)


@pytest.mark.parametrize(("end", "code"), [("exit", 1), ("close", 0)])
def test_a_failure_after_the_last_call_is_told_at_the_end(tmp_path: Path, end: str, code: int) -> None:
    """By hand: `gradwire run` would end the survivor itself."""
    with ByHand(tmp_path, variables(tmp_path), servers=1) as job:
        job.start_all(python("mxnet_exec.py", LAST_READ, end))
        survivor = job.members["worker", 0].ended(SECONDS)
    assert survivor.code == code, str(survivor)
    said = survivor.err if end == "exit" else survivor.out
    assert "worker 1" in said, str(survivor)
    assert ("the script has not heard of" in survivor.err) == (end == "exit"), str(survivor)


def test_the_runner_wants_a_script(tmp_path: Path) -> None:
    with Job(tmp_path, variables(tmp_path)) as job:
        ended = job.start(("worker", 0), python("mxnet_exec.py", "-m", "gradwire.mxnet")).ended(SECONDS)
    assert ended.code == 2
    assert "usage: python -m gradwire.mxnet SCRIPT" in ended.err
