"""gradwire.byteps.torch on two ranks. One job runs all cases: with servers and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.torch_jobs import CaseJob, case_names

PROGRAM = Path(__file__).with_name("byteps_cases.py")


@pytest.fixture(scope="module", params=[0, 2], ids=["allreduce", "servers"])
def job(request: pytest.FixtureRequest) -> CaseJob:
    return CaseJob(PROGRAM, workers=2, servers=request.param)


@pytest.mark.parametrize("name", case_names(PROGRAM))
def test_two_ranks(name: str, job: CaseJob) -> None:
    assert job.passed[name] == 2, job.text


def test_the_job_ends_by_itself(job: CaseJob) -> None:
    assert job.exit_code == 0, job.text
