"""The table of predictions by itself: its columns, and what a narrow terminal gets."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any, cast

import pytest
from gradwire.plan.planner import Prediction
from gradwire.plan.prediction_table import fitting_table
from gradwire.plan.simulation import Network, Schedule
from rich.console import Console
from rich.table import Table

NETWORK = Network("servers", 4, 2, 1e9, 50e-6)
ROW = Prediction(
    cast(Any, "2bit:reply=2bit"), NETWORK, Schedule(), 0.13, 0.1, 0.7692, 0.9, 0.03, 2**20, 2**20, 0.5
)
OTHER = replace(ROW, variant=cast(Any, "none"), step_seconds=0.2, efficiency=0.5)


def shown(rows: list[Prediction], best: Prediction | None = None, width: int = 200) -> Table:
    return fitting_table(rows, best, Console(width=width, file=io.StringIO()))


def titles(table: Table) -> list[str]:
    return [str(column.header) for column in table.columns]


def cells(table: Table, title: str) -> list[str]:
    return [str(cell) for cell in table.columns[titles(table).index(title)].cells]


def test_columns_that_differ_are_in_the_table_and_the_others_in_its_title() -> None:
    table = shown([ROW, OTHER])
    assert "workers" not in titles(table)
    assert "placement servers: 2" in str(table.title)
    assert "workers 4" in str(table.title)
    assert cells(table, "codec") == ["2bit:reply=2bit", "none"]
    assert cells(table, "effi-\nciency") == ["76.9%", "50.0%"]
    more = shown([ROW, replace(OTHER, network=replace(NETWORK, workers=8))])
    assert cells(more, "workers") == ["4", "8"]


def test_the_recommended_row_is_bold() -> None:
    table = shown([ROW, OTHER], OTHER)
    assert [row.style for row in table.rows] == [None, "bold"]


@pytest.mark.parametrize(
    ("step", "interval", "text"),
    [
        (0.13, None, "-"),
        (0.13, (0.11, 0.15), "110-150"),
        (1.3, (1.04, 1.5), "1.04-1.5"),
        (0.9, (0.8, 1.04), "800-1040"),
    ],
)
def test_an_interval_is_in_the_unit_of_its_step(
    step: float, interval: tuple[float, float] | None, text: str
) -> None:
    assert cells(shown([replace(ROW, step_seconds=step, step_interval=interval)]), "interval") == [text]


def test_a_library_that_sums_has_no_credit() -> None:
    table = shown([ROW, replace(ROW, schedule=Schedule(credit_bytes=None))])
    assert cells(table, "credit")[1] == "-"


def test_on_a_narrow_terminal_words_break_and_then_columns_go() -> None:
    wide = shown([ROW, OTHER])
    needed = Console(width=200).measure(wide).maximum
    broken = shown([ROW, OTHER], width=needed - 3)
    assert titles(broken) == titles(wide)
    assert (wide.columns[0].no_wrap, broken.columns[0].no_wrap) == (True, False)
    fewer = shown([ROW, OTHER], width=30)
    assert {"bound", "exposed"}.isdisjoint(titles(fewer))
    assert fewer.caption == "--json also has partition, credit, bound, exposed."
