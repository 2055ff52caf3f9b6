"""experiments/controller: the table of points, and what the grid's verdict says."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from gradwire.ab.experiment import Run
from gradwire.ab.summary import summarise
from gradwire.controller import CANDIDATES, Budget, accuracy
from gradwire.result import RunResult
from python.experiment_files import imported

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "controller"


@pytest.fixture
def modules() -> Iterator[dict[str, ModuleType]]:
    with imported(FOLDER, ("accuracy_cost", "verdict", "run")) as modules:
        yield modules


def test_the_page_has_the_tables_of_the_results(modules: dict[str, ModuleType]) -> None:
    known = json.loads((FOLDER / "results.json").read_text())
    assert modules["verdict"].markdown(known) in (FOLDER / "README.md").read_text()


# ---- the table of points -------------------------------------------------------------------------------------

WRONG = {"fp16": 0.0004, "int8": 0.02, "nf4": 0.2, "nf2": 0.9}


def rows(scores: dict[tuple[str, str], list[float]], metric: str = "accuracy") -> list[dict[str, str]]:
    return [
        {"task": task, "arm": arm, "seed": str(seed), "metric": metric, "score": str(score)}
        for (task, arm), values in scores.items()
        for seed, score in enumerate(values)
    ]


def test_a_loss_is_paired_by_task_and_seed(modules: dict[str, ModuleType]) -> None:
    given = rows({("a", "none"): [0.9, 0.8], ("a", "int8"): [0.89, 0.81, 0.5], ("b", "int8"): [0.1]})
    found = modules["accuracy_cost"].losses(given + rows({("c", "none"): [3.0]}, "loss"))
    assert {task: dict(arms) for task, arms in found.items()} == {
        "a": {"int8": [pytest.approx(1.0), pytest.approx(-1.0)]}
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([3, 1, 2], [2, 2, 2]),
        ([1, 3, 2, 4], [1, 2.5, 2.5, 4]),
        ([4, 3, 2, 1], [2.5, 2.5, 2.5, 2.5]),
    ],
)
def test_neighbours_out_of_order_are_pooled(
    modules: dict[str, ModuleType], values: list[float], expected: list[float]
) -> None:
    assert modules["accuracy_cost"].isotonic(values, [1] * len(values)) == pytest.approx(expected)
    heavy = modules["accuracy_cost"].isotonic([3, 1], [1, 3])
    assert heavy == pytest.approx([1.5, 1.5])


def test_a_codec_that_is_less_wrong_loses_no_more_by_the_luck_of_seeds(
    modules: dict[str, ModuleType],
) -> None:
    made = modules["accuracy_cost"]
    losses = {"int8": [0.4] * 5, "nf4": [0.0] * 5, "fp16": [-0.3, 0.5, 0.1, 0.1, 0.1], "nf2": [0.7] * 5}
    found = {row.codec: row for row in made.table({"a": losses}, WRONG)}
    assert found["int8"].points == found["nf4"].points == pytest.approx(0.2)
    assert found["int8"].points_at_most == pytest.approx(0.2)
    assert found["fp16"].points_at_most == 0.0, "an error of less than 1 % is taken to cost nothing"
    assert found["nf2"].points == pytest.approx(0.7)


def test_an_arms_margin_is_that_of_its_own_seeds(modules: dict[str, ModuleType]) -> None:
    losses = {"a": {"int8": [0.1] * 5, "nf2": [0.0, 0.5, 1.0, 1.5, 2.0]}}
    int8, nf2 = modules["accuracy_cost"].table(losses, WRONG)
    assert int8.points_at_most == pytest.approx(0.1)
    assert nf2.points_at_most == pytest.approx(
        1.0 + 2.132 * 0.7906 / 5**0.5, abs=1e-3
    )  # Student's with 4 degrees


def test_the_worst_task_counts_and_too_few_seeds_do_not(modules: dict[str, ModuleType]) -> None:
    losses = {"a": {"int8": [0.2] * 6}, "b": {"int8": [0.5] * 5}, "c": {"int8": [9.0] * 4, "nf2": [1.0]}}
    (row,) = modules["accuracy_cost"].table(losses, WRONG)
    assert row.points == row.points_at_most == pytest.approx(0.5)
    assert (row.tasks, row.seeds) == (2, 5)


def test_an_arms_error_is_its_worst_layers_late_median(modules: dict[str, ModuleType]) -> None:
    points = [("int8", "a", 5, 9.0), ("int8", "a", 10, 0.1), ("int8", "b", 5, 9.0), ("int8", "b", 10, 0.3)]
    given = [
        {"arm": arm, "layer": layer, "step": str(step), "relative_error": str(error)}
        for arm, layer, step, error in points
    ]
    assert modules["accuracy_cost"].errors(given) == {"int8": 0.3}


def test_the_program_writes_what_the_package_reads(tmp_path: Path) -> None:
    out = tmp_path / "cost.csv"
    command = [sys.executable, str(FOLDER / "accuracy_cost.py"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    committed = Path(accuracy.__file__).with_name("accuracy_cost.csv")
    assert out.read_text() == committed.read_text(), "run it again, and commit what it writes"
    with out.open() as lines:
        written = [(row["optimizer"], row["codec"]) for row in csv.DictReader(lines)]
    assert [(of, codec) for of in get_args(accuracy.Optimizer) for codec in accuracy.load(of, out)] == written


# ---- the grid ------------------------------------------------------------------------------------------------

ALL = frozenset(CANDIDATES)


def runs(arm: str, seconds: float, final: float = 0.9) -> list[Run]:
    return [
        Run(arm, seed, RunResult("accuracy", (0.5, final), (seconds / 2, seconds)), seconds)
        for seed in range(2)
    ]


def outcome(auto: float, final: float = 0.9) -> object:
    arms = {"none": 10.0, "fp16": 6.0, "nf2": 2.0, "auto": auto}
    all_runs = [run for arm, s in arms.items() for run in runs(arm, s, final if arm == "auto" else 0.9)]
    return summarise(all_runs, list(arms), 0.895, "50mbit")  # as grid.py has it: near none's


def test_auto_is_held_against_the_best_fixed_setting_and_the_better_baseline(
    modules: dict[str, ModuleType],
) -> None:
    found = modules["verdict"].of(outcome(2.1), "auto", ALL)
    assert (found.best_fixed, found.baseline) == ("nf2", "fp16")
    assert found.to_target.mean == pytest.approx(1.05)
    assert found.training.mean == pytest.approx(0.35)
    record = {"row": "r", "verdict_of_auto": found.record(), "budget_points": 1.0}
    assert [holds for *_, holds in modules["verdict"].claims(record)] == [True, True, True]


def test_auto_is_held_too_against_the_best_that_its_budget_admits(modules: dict[str, ModuleType]) -> None:
    found = modules["verdict"].of(outcome(6.3), "auto", ("none", "fp16"))
    assert (found.best_fixed, found.best_admitted) == ("nf2", "fp16")
    assert found.to_target_admitted.mean == pytest.approx(1.05)
    record = {"row": "r", "verdict_of_auto": found.record(), "budget_points": 1.0}
    assert [holds for *_, holds in modules["verdict"].claims(record)] == [False, True, False, True]


def test_what_a_budget_admits_is_what_auto_may_take(modules: dict[str, ModuleType]) -> None:
    for points, expected in (("0.3", CANDIDATES[:3]), ("0.5", CANDIDATES[:4]), ("1", CANDIDATES)):
        assert modules["verdict"].admitted_by(Budget.parse(f"{points} points")) == set(expected)


def test_what_does_not_hold_is_said(modules: dict[str, ModuleType]) -> None:
    found = modules["verdict"].of(outcome(6.6, final=0.88), "auto", ALL)
    assert found.to_target is None
    assert found.points_lost == pytest.approx(2.0)
    record = outcome(6.6, final=0.88).record()  # type: ignore[attr-defined]
    record |= {"row": "lenet-50mbit", "verdict_of_auto": found.record(), "budget_points": 1.0}
    assert [holds for *_, holds in modules["verdict"].claims(record)] == [False, False, False]
    text = modules["verdict"].markdown([record])
    assert text.count("**no**") == 3
    assert "| lenet-50mbit | 9.9 | 6.0 | 2.0 | - |" in text


def test_a_rows_record_has_what_auto_did_and_how_it_was_measured(modules: dict[str, ModuleType]) -> None:
    made = modules["run"]
    measured = made.Measured(outcome(2.1), {"took": "1 s"}, "the link is NOT shaped")
    record = made.record_of(made.Budget.parse("2 points"), "lenet-50mbit", measured)
    assert record["verdict_of_auto"] == modules["verdict"].of(outcome(2.1), "auto", ALL).record()
    found = [record[name] for name in ("row", "budget_points", "warning", "facts")]
    assert found == ["lenet-50mbit", 2.0, "the link is NOT shaped", {"took": "1 s"}]


def test_rows_are_three_models_on_four_links(modules: dict[str, ModuleType]) -> None:
    made = modules["run"]
    assert len(made.ROWS) == 12
    assert set(made.QUICK_ROWS) < set(made.ROWS)


def test_a_bad_budget_is_refused_before_hours_of_runs() -> None:
    command = [sys.executable, str(FOLDER / "run.py"), "--budget", "little"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "expected points of accuracy" in done.stderr
