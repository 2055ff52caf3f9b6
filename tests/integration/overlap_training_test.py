"""overlap_step on real training: weights and optimizer's state are the plain loop's, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.torch_jobs import CaseJob, case_names

PROGRAM = Path(__file__).with_name("overlap_training_cases.py")


@pytest.fixture(scope="module")
def job() -> CaseJob:
    return CaseJob(PROGRAM, "dist_sync", workers=2, servers=2)


@pytest.mark.parametrize("name", case_names(PROGRAM))
def test_forty_steps_on_fashion_mnist_have_the_plain_loops_bits(name: str, job: CaseJob) -> None:
    assert job.passed[name] == job.workers, job.text
    assert job.exit_code == 0, job.text
