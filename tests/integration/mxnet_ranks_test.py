"""MXNet 1.9.1 on gradwire's stores: two workers and two servers. One job runs all cases."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.mxnet_environment import environment
from integration.torch_jobs import CaseJob, case_names

HERE = Path(__file__).parent
EXEC = HERE / "mxnet_exec.py"
PROGRAM = HERE / "mxnet_rank_cases.py"
CASES = case_names(PROGRAM) + case_names(HERE / "mxnet_trainer_cases.py")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> CaseJob:
    folder = tmp_path_factory.mktemp("mxnet_ranks")
    with environment(folder):
        return CaseJob(EXEC, str(PROGRAM), str(folder), workers=2, servers=2)


@pytest.mark.parametrize("name", CASES)
def test_two_ranks(name: str, job: CaseJob) -> None:
    assert job.passed[name] == 2, job.text


def test_the_job_ends_by_itself(job: CaseJob) -> None:
    assert job.exit_code == 0, job.text
