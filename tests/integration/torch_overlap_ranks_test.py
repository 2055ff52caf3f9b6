"""overlap_step on two and three ranks, by servers and without, beside the loop that waits for its sums."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.torch_jobs import CaseJob, case_names

PROGRAM = Path(__file__).with_name("torch_overlap_cases.py")
CASES = case_names(PROGRAM) + case_names(PROGRAM.with_name("torch_overlap_model_cases.py"))


@pytest.fixture(
    scope="module",
    params=[("dist_sync", 2, 2), ("allreduce", 2, 0), ("dist_sync", 3, 1), ("allreduce", 3, 0)],
    ids=lambda given: f"{given[0]}-{given[1]}",
)
def job(request: pytest.FixtureRequest) -> CaseJob:
    store, workers, servers = request.param
    return CaseJob(PROGRAM, store, workers=workers, servers=servers)


@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_the_plain_loop(name: str, job: CaseJob) -> None:
    assert job.passed[name] == job.workers, job.text


def test_a_job_ends_by_itself_with_a_step_under_way(job: CaseJob) -> None:
    assert job.exit_code == 0, job.text
