"""experiments/training/grid.py: rows of real jobs, what is kept of them, and what a failing row leaves behind."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from gradwire.ab.experiment import Plan
from python.experiment_files import load

FILE = Path(__file__).resolve().parents[2] / "experiments" / "training" / "grid.py"
TRAINS = """
import gradwire, gradwire.result
store = gradwire.kv.create("allreduce")
if store.rank == 0:
    gradwire.result.write(accuracy_per_epoch=[0.5, 0.75], seconds_per_epoch=[1.0, 2.0], bytes_per_step=10, steps=4)
store.close()
"""


@pytest.fixture(scope="module")
def grid() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FILE.parents[1]))  # as a run.py does
        yield load(FILE)


def grid_of(module: ModuleType, folder: Path, programs: dict[str, str]) -> Any:
    def plan(row: str) -> Plan:
        command = (sys.executable, "-c", programs[row])
        return Plan(command, ("none",), (0,), 2, 0, None, folder / row)

    def record(row: str, measured: Any) -> dict[str, Any]:
        return {"row": row, "link": measured.outcome.link, "facts": measured.facts}

    def tables(known: list[dict[str, Any]]) -> str:
        return " | ".join(record["row"] for record in known)

    return module.Grid("grid_test", "row", ["first", "second"], plan, record, tables)


def test_rows_are_kept_in_the_order_of_the_tables(
    grid: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = grid_of(grid, tmp_path, {"first": TRAINS, "second": TRAINS})
    assert ours.run(["second"], tmp_path, None) == 0
    assert ours.run(["first"], tmp_path, str(tmp_path / "records.json")) == 0
    kept = json.loads((tmp_path / "results.json").read_text())
    assert [record["row"] for record in kept] == ["first", "second"]
    assert kept[0]["facts"]["workers"] == "2, no servers"
    assert json.loads((tmp_path / "records.json").read_text()) == kept
    assert (tmp_path / "first" / "index.html").exists()
    assert capsys.readouterr().out.endswith("first | second\n")
    assert ours.run([], tmp_path, None) == 0
    assert capsys.readouterr().out == "first | second\n"


def test_a_row_that_fails_ends_the_grid_and_leaves_what_was_measured(
    grid: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [{"row": "second", "link": "1gbit", "facts": {}}]
    (tmp_path / "results.json").write_text(json.dumps(before))
    ours = grid_of(grid, tmp_path, {"first": "raise SystemExit(3)"})
    assert ours.run(["first"], tmp_path, None) == 3
    assert json.loads((tmp_path / "results.json").read_text()) == before
    assert "grid_test: first: " in capsys.readouterr().err


@pytest.mark.parametrize(("is_quick", "flags"), [(False, ["--epochs", "5"]), (True, ["--epochs", "1"])])
def test_quick_is_a_shorter_training_of_the_same_script(
    grid: ModuleType, is_quick: bool, flags: list[str]
) -> None:
    workload = grid.Workload("char_lm/train.py", "--epochs 5", "--epochs 1")
    assert Path(workload.path).exists()
    assert workload.flags(Namespace(quick=is_quick)) == flags
