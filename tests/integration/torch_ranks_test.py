"""gradwire.torch on two ranks beside DistributedDataParallel. One job runs all cases of a program."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest
from integration.torch_jobs import CaseJob, case_names

HERE = Path(__file__).parent
SERVERS = {"torch_cases": 0, "torch_server_cases": 2}  # by program
CASES = {
    "torch_cases": [name for part in ("", "step_") for name in case_names(HERE / f"torch_{part}cases.py")],
    "torch_server_cases": case_names(HERE / "torch_server_cases.py"),
}


@functools.cache
def job_of(program: str) -> CaseJob:
    with tempfile.TemporaryDirectory() as folder:
        return CaseJob(HERE / f"{program}.py", folder, workers=2, servers=SERVERS[program])


@pytest.mark.parametrize(
    ("program", "name"), [(program, name) for program in SERVERS for name in CASES[program]]
)
def test_two_ranks(program: str, name: str) -> None:
    job = job_of(program)
    assert job.passed[name] == 2, job.text


@pytest.mark.parametrize("program", SERVERS)
def test_the_job_ends_by_itself(program: str) -> None:
    job = job_of(program)
    assert job.exit_code == 0, job.text
