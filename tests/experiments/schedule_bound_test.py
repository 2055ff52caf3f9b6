"""experiments/schedule_bound: its committed results are what the simulator gives, and its claims hold in that."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from python.experiment_files import load

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "schedule_bound"
RESULTS: dict[str, list[dict[str, Any]]] = json.loads((FOLDER / "results.json").read_text())


NOT_SIMULATED = {"simulator_seconds"}  # by the machine's clock


@functools.cache
def computed(table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = load(FOLDER / "run.py").TABLES[table]()
    return rows


def test_every_table_has_committed_results() -> None:
    assert load(FOLDER / "run.py").TABLES.keys() == RESULTS.keys()


@pytest.mark.parametrize("table", RESULTS)
def test_committed_results_are_what_the_simulator_gives(table: str) -> None:
    again = computed(table)
    assert len(again) == len(RESULTS[table])
    for row, committed in zip(again, RESULTS[table], strict=True):
        assert row.keys() == committed.keys()
        for name in row.keys() - NOT_SIMULATED:
            value = row[name]
            is_number = isinstance(value, float)
            assert value == (pytest.approx(committed[name], rel=1e-6) if is_number else committed[name]), row


def test_ours_is_within_five_percent_of_the_bound() -> None:
    rows = computed("against_bound")
    assert len(rows) == 3 * 6 * 3
    assert min(row["tuned_of_bound"] for row in rows) >= 95
    assert min(row["default_of_bound"] for row in rows) >= 95


def test_the_simulator_agrees_with_another_one() -> None:
    for row in computed("other_simulation"):
        assert row["priority"] == pytest.approx(row["priority_theirs"], abs=1.0), row
        assert row["priority"] <= row["bound"] + 1e-6
        assert row["in_order"] == pytest.approx(row["in_order_theirs"], abs=2.0), row
        assert row["whole"] == pytest.approx(row["whole_theirs"], abs=3.0), row


def test_the_next_forward_begins_before_the_last_sum_has_arrived() -> None:
    rows = computed("trace")
    assert rows[0]["next_forward"] < max(row["arrived"] for row in rows)
    assert all(row["arrived"] <= row["next_forward"] + 1e-9 for row in rows)


def test_gains_are_those_of_the_defaults() -> None:
    ours = {
        (row["model"], row["link"], row["placement"]): row["default"] for row in computed("against_bound")
    }
    for row in computed("orders"):
        default = ours[row["model"], row["link"], f"{row['servers']} servers"]
        assert row["gain_over_whole"] == pytest.approx(100 * (default / row["whole_in_order"] - 1)), row
        assert row["gain_over_in_order"] == pytest.approx(100 * (default / row["in_order"] - 1)), row
        assert row["tuned"] >= default - 1e-9  # which stands beside it, under that name


def test_unbounded_credit_loses_what_priorities_gain() -> None:
    gains = [row["default"] - row["unbounded_credit"] for row in computed("orders")]
    assert min(gains) > -0.5
    assert max(gains) > 10


def test_no_efficiency_is_above_its_bound() -> None:
    for table in ("sixty_four_gpus", "many_workers", "by_bandwidth"):
        for row in computed(table):
            assert row["efficiency"] <= row["bound"] + 1e-6, row
