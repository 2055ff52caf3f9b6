"""experiments/fsdp_weights: a short run with compressed weights and gradients, and the table of its page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from python.experiment_files import imported

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "fsdp_weights"


@pytest.fixture(scope="module")
def run() -> Iterator[ModuleType]:
    with imported(FOLDER, ("run",)) as modules:
        yield modules["run"]


def test_rounded_weights_train(run: ModuleType) -> None:
    (row,) = run.train("char_lm_tiny", "gradients=int8+weights=int8", [3], 25)
    assert (row.task, row.seed, row.steps) == ("char_lm_tiny", 3, 25)
    assert 2 < row.loss < 4.5
    assert row.loss != row.loss_exact == pytest.approx(row.loss, abs=0.05)


def test_a_job_that_fails_is_said(run: ModuleType) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)vit weights=2bit: exit code 1.*expected 'int8' or 'int4'"):
        run.train("vit", "weights=2bit", [0], 1)


def test_runs_are_kept_in_order(run: ModuleType, tmp_path: Path) -> None:
    rows = [
        run.Row("vit", "plain", 1, 400, 0.5, 0.5),
        run.Row("char_lm_tiny", "weights=int8", 0, 400, 2.5, 2.6),
    ]
    run.write(rows, tmp_path / "rows.csv")
    assert run.read(tmp_path / "rows.csv") == rows[::-1]


def test_the_page_has_what_was_measured(run: ModuleType) -> None:
    rows = run.read()
    assert {(row.task, row.arm, row.seed) for row in rows} == {
        (task, arm, seed) for task in run.TASKS for arm in run.ARMS for seed in range(run.SEEDS)
    }
    assert run.table(rows) in (FOLDER / "README.md").read_text(encoding="utf-8")
