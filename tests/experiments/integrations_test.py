"""experiments/integrations: a plain and a compressed run, killed and resumed; the page and lines that it writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from python.experiment_files import imported

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "integrations"


@pytest.fixture(scope="module")
def run() -> Iterator[ModuleType]:
    with imported(FOLDER, ("run",)) as modules:
        yield modules["run"]


def test_a_killed_run_resumes_bit_for_bit(run: ModuleType) -> None:
    found = run.measure("accelerate", ["plain", "int8"], 12, 3)
    assert found["resumed"]["weights"] == found["int8"]["weights"] != found["plain"]["weights"]
    assert found["plain"]["bytes_per_step"] is None
    assert 3.5 < found["int8"]["bytes_uncompressed"] / found["int8"]["bytes_per_step"] < 4
    assert found["int8"]["loss"] == pytest.approx(found["plain"]["loss"], rel=0.01)
    assert found["int8"]["loss"] < found["int8"]["loss_first_step"]


def test_the_page_has_what_was_measured(run: ModuleType) -> None:
    results: dict[str, Any] = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
    assert run.table(results) in (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(results["frameworks"]) == set(run.FRAMEWORKS)
    assert all(0 < added <= 3 for added in results["lines"].values())


def test_a_job_that_fails_is_said(run: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)accelerate int9: exit code 1.*did you mean int8"):
        run.train("accelerate", "int9", tmp_path)
