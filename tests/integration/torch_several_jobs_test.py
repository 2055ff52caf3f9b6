"""Ranks that form several gradwire jobs: four ranks that torchrun starts, two jobs of two, on Gloo. One job of torchrun
runs all cases.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from integration.torch_jobs import case_names, needs_sharding, run_cases_by_torchrun

PROGRAM = Path(__file__).with_name("torch_several_jobs_cases.py")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    return run_cases_by_torchrun(PROGRAM, tmp_path_factory.mktemp("torch_several_jobs"), workers=4)


@needs_sharding
@pytest.mark.parametrize("name", case_names(PROGRAM))
def test_four_ranks(name: str, outcome: subprocess.CompletedProcess[str]) -> None:
    assert outcome.stdout.count(f"{name} passed") == 4, outcome.stdout + outcome.stderr


@needs_sharding
def test_the_job_ends_by_itself(outcome: subprocess.CompletedProcess[str]) -> None:
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.count("ended") == 4
