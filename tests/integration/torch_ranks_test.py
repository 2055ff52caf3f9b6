"""gradwire.torch on two ranks beside DistributedDataParallel. One job runs all cases."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from gradwire.launch import run_job
from integration.torch_jobs import case_names

PROGRAM = Path(__file__).with_name("torch_cases.py")


class Outcome:
    def __init__(self, folder: Path) -> None:
        lines: list[str] = []
        self.passed: Counter[str] = Counter()

        def take(line: object) -> None:
            text = line.text  # type: ignore[attr-defined]
            lines.append(f"{line.role} {line.rank}: {text}")  # type: ignore[attr-defined]
            if text.endswith(" passed"):
                self.passed[text.removesuffix(" passed")] += 1

        result = run_job(
            [sys.executable, str(PROGRAM), str(folder)],
            workers=2,
            servers=0,
            output=take,
            report=lines.append,
            timeout=300,
        )
        self.exit_code = result.exit_code
        self.text = "\n".join(lines)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return Outcome(tmp_path_factory.mktemp("torch_ranks"))


@pytest.mark.parametrize("name", case_names(PROGRAM))
def test_two_ranks(name: str, outcome: Outcome) -> None:
    assert outcome.passed[name] == 2, outcome.text


def test_the_job_ends_by_itself(outcome: Outcome) -> None:
    assert outcome.exit_code == 0, outcome.text
