"""DDP's hook and FSDP2's reduce-scatter on two ranks that torchrun starts, on Gloo. One job runs all cases."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from integration.processes import Job
from integration.torch_jobs import case_names, needs_sharding, run_cases_by_torchrun, torchrun

PROGRAM = Path(__file__).with_name("torch_ddp_cases.py")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    return run_cases_by_torchrun(PROGRAM, tmp_path_factory.mktemp("torch_ddp"))


@pytest.mark.parametrize("name", case_names(PROGRAM))
def test_two_ranks(name: str, outcome: subprocess.CompletedProcess[str]) -> None:
    assert outcome.stdout.count(f"{name} passed") == 2, outcome.stdout + outcome.stderr


def test_the_job_ends_by_itself(outcome: subprocess.CompletedProcess[str]) -> None:
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.count("ended") == 2


@pytest.mark.parametrize("end", ["raise", "exit"])
def test_an_error_on_rank_0_ends_the_job(end: str, tmp_path: Path) -> None:
    with Job(tmp_path, {}) as job:
        ended = job.start(("run", 0), torchrun("torch_crash_worker.py", end)).ended(60)
    assert ended.code != 0, str(ended)
    assert "no such file of images" in ended.err, str(ended)
    assert "the job ends with it" in ended.err, str(ended)


def test_ctrl_c_in_a_backward_of_ddp_ends_the_job_though_the_script_catches_it(tmp_path: Path) -> None:
    with Job(tmp_path, {}) as job:
        ended = job.start(("run", 0), torchrun("torch_interrupted_worker.py", "ddp")).ended(60)
    assert ended.code != 0, str(ended)
    assert "rank 0 was interrupted" in ended.out, str(ended)
    assert "INTERNAL ASSERT FAILED" in ended.err, str(ended)  # DDP refuses the next forward()


@needs_sharding
def test_ctrl_c_in_a_reduce_scatter_ends_its_process_and_the_job(tmp_path: Path) -> None:
    with Job(tmp_path, {}) as job:
        ended = job.start(("run", 0), torchrun("torch_interrupted_worker.py", "fsdp")).ended(60)
    assert ended.code != 0, str(ended)
    assert "was interrupted" not in ended.out, str(ended)
    assert "Signal 2 (SIGINT) received" in ended.err, str(ended)
