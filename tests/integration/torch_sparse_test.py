"""Sparse gradients travel as rows: two ranks that sum themselves, three with servers. One job runs all cases."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.torch_jobs import CaseJob, case_names

PROGRAM = Path(__file__).with_name("torch_sparse_cases.py")


@pytest.fixture(scope="module", params=["two peers", "three workers of two servers"])
def job(request: pytest.FixtureRequest) -> CaseJob:
    if request.param == "two peers":
        return CaseJob(PROGRAM, "allreduce", workers=2)
    return CaseJob(PROGRAM, "dist_sync", workers=3, servers=2)


@pytest.mark.parametrize("name", case_names(PROGRAM))
def test_ranks(name: str, job: CaseJob) -> None:
    assert job.passed[name] == job.workers, job.text


def test_the_job_ends_by_itself(job: CaseJob) -> None:
    assert job.exit_code == 0, job.text
