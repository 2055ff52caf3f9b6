"""gradwire.torch on two ranks beside DistributedDataParallel. One job runs all cases."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.torch_jobs import CaseJob, case_names

PROGRAM = Path(__file__).with_name("torch_cases.py")
CASES = case_names(PROGRAM) + case_names(PROGRAM.with_name("torch_step_cases.py"))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> CaseJob:
    return CaseJob(PROGRAM, str(tmp_path_factory.mktemp("torch_ranks")), workers=2)


@pytest.mark.parametrize("name", CASES)
def test_two_ranks(name: str, job: CaseJob) -> None:
    assert job.passed[name] == 2, job.text


def test_the_job_ends_by_itself(job: CaseJob) -> None:
    assert job.exit_code == 0, job.text
