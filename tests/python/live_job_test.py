"""The live view of jobs that run one after the other, on a terminal and on a plain stream."""

from __future__ import annotations

import io
import re

import pytest
from gradwire.launch.child import Line
from gradwire.launch.progress import LiveJob
from rich.console import Console


def shown(is_terminal: bool) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=is_terminal, width=100)
    with LiveJob(console, "runs", None) as view:
        view.expect(3)
        view.begin("2bit, seed 1")
        view.line(Line("worker", 0, "stdout", "epoch 1 of 5"))
        view.line(Line("worker", 0, "stdout", "  "))
        view.line(Line("worker", 1, "stdout", "not of rank 0"))
        view.advance()
        view.console.print("above")
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())


def test_a_terminal_has_the_bar_the_job_and_rank_0s_last_line() -> None:
    text = shown(is_terminal=True)
    for part in ("2bit, seed 1", "1/3", "epoch 1 of 5", "above"):
        assert part in text
    assert "not of rank 0" not in text


@pytest.mark.parametrize("before", ["", "epoch 4"])
def test_a_new_job_begins_without_the_last_ones_line(before: str) -> None:
    view = LiveJob(Console(file=io.StringIO()), "runs", 2)
    view.line(Line("worker", 0, "stdout", before))
    view.begin("next")
    assert view._last.plain == ""


def test_a_plain_stream_has_what_is_printed_alone() -> None:
    assert shown(is_terminal=False) == "above\n"
