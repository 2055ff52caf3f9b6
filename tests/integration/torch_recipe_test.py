"""Training as scripts of today do it, through each door of gradwire.torch: two ranks that torchrun starts, on Gloo. One
job runs all cases.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from integration.torch_jobs import case_names, run_cases_by_torchrun

PROGRAM = Path(__file__).with_name("torch_recipe_cases.py")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    return run_cases_by_torchrun(PROGRAM, tmp_path_factory.mktemp("torch_recipe"))


@pytest.mark.parametrize("name", case_names(PROGRAM))
def test_two_ranks(name: str, outcome: subprocess.CompletedProcess[str]) -> None:
    assert outcome.stdout.count(f"{name} passed") == 2, outcome.stdout + outcome.stderr


def test_the_job_ends_by_itself(outcome: subprocess.CompletedProcess[str]) -> None:
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.count("ended") == 2
