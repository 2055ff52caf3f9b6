"""Progress of `gradwire ab`: what a script and its store say, and what a terminal and a plain stream show of it."""

from __future__ import annotations

import io
import json
import re
import sys
import time
from pathlib import Path

import pytest
from gradwire import result
from gradwire.ab import experiment as ab
from gradwire.ab import progress_view
from gradwire.ab.experiment import Plan, Run, RunFailed
from gradwire.ab.progress_view import ProgressView
from gradwire.result import RunProgress, RunResult
from rich.console import Console

ARMS = ("none", "2bit", "2bit:reply=2bit")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, for the test to set."""
    now = [1000.0]
    monkeypatch.setattr(progress_view.time, "monotonic", lambda: now[0])
    return now


def view_of(width: int, *, terminal: bool, seeds: int = 2) -> tuple[ProgressView, io.StringIO]:
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, force_terminal=terminal, color_system=None, legacy_windows=False
    )
    return ProgressView(console, ARMS, seeds), stream


def ended(arm: str, seed: int, accuracy: float, wall: float) -> Run:
    return Run(arm, seed, RunResult("accuracy", (accuracy,), images_per_second=4830.4), wall)


def shown(view: ProgressView) -> str:
    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(view._render())
    return stream.getvalue()


def test_a_terminal_has_a_row_per_arm(clock: list[float]) -> None:
    view, _ = view_of(80, terminal=True)
    view.started("none", 0)
    view.moved(RunProgress(done=0.25, accuracy=0.604, images_per_second=830.0))
    clock[0] += 5.0
    none, two_bit, both, status, *_ = shown(view).splitlines()
    assert re.search(r"^no compression .*accuracy 60.4 %\s+830 samples/s\s+15 s left\s*$", none)
    assert re.search(r"^2bit .*waits\s*$", two_bit)
    assert re.search(r"^2bit:reply=2bit .*waits\s*$", both)
    assert status.strip() == "0 of 6 runs, 5.0 s"  # nothing is known of the other arms yet
    view.finished(ended("none", 0, 0.757, 20.0))
    view.started("2bit", 0)
    view.moved(RunProgress(done=0.5))
    clock[0] += 2.0
    view.finished(ended("2bit", 0, 0.762, 4.0))
    view.started("2bit:reply=2bit", 0)
    view.moved(RunProgress(done=0.5))
    clock[0] += 2.0
    none, two_bit, both, status, *_ = shown(view).splitlines()
    assert "accuracy 75.7 %" in none
    assert "4,830 samples/s" in two_bit
    assert "2.0 s left" in both
    assert status.strip() == "2 of 6 runs, 9.0 s, about 30 s left"  # 20 + 4 + 4 + 2


def test_the_live_display_comes_and_goes(clock: list[float]) -> None:
    view, stream = view_of(80, terminal=True)
    with view:
        view.started("none", 0)
        view.failed(RunFailed("none", 0, "worker 1 ended", 9, ["no memory"]))
    text = stream.getvalue()
    assert "| no memory" in text
    assert "none, seed 0: worker 1 ended: failed" in text
    assert "1 failed" in shown(view)


def test_a_plain_stream_gets_lines(clock: list[float]) -> None:
    view, stream = view_of(80, terminal=False)
    with view:
        view.started("none", 0)
        clock[0] += 5.0
        view.moved(RunProgress(done=0.2, images_per_second=830.0))
        clock[0] += 5.0
        view.moved(RunProgress(done=0.5, accuracy=0.604, images_per_second=830.0))
        view.moved(RunProgress(done=0.51, accuracy=0.604, images_per_second=831.0))  # nothing new
        clock[0] += 10.0
        view.moved(RunProgress(done=0.8, accuracy=0.604, images_per_second=832.0))
        view.finished(ended("none", 0, 0.757, 25.0))
    assert stream.getvalue().splitlines() == [
        "no compression, seed 0: run 1 of 6 begins",
        "no compression, seed 0: 50 %, accuracy 60.4 %, 830 samples/s, 10 s left",
        "no compression, seed 0: 80 %, accuracy 60.4 %, 832 samples/s, 5.0 s left",
        "no compression, seed 0: accuracy 75.7 %, 4,830 samples/s, took 25 s",
    ]


def test_a_loss_is_shown_as_one(clock: list[float]) -> None:
    view, stream = view_of(80, terminal=False)
    view.started("none", 0)
    view.moved(RunProgress(done=0.5, loss=2.31))
    assert "50 %, loss 2.31" in stream.getvalue()


# What a script says


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "result.json"
    monkeypatch.setenv("GRADWIRE_RESULT", str(path))
    monkeypatch.setenv("GRADWIRE_NUM_WORKERS", "2")
    monkeypatch.setenv("GRADWIRE_RANK", "0")
    monkeypatch.setattr(result.run_meter, "_meter", None)
    monkeypatch.setattr(result, "_said_at", -1.0)
    return path


def test_a_script_says_how_far_it_is(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert result.read_progress(record) is None
    result.progress(0.25, accuracy=0.5)
    assert result.read_progress(record) == RunProgress(0.25, 0.5)
    result.progress(0.26)  # too soon to be looked at
    assert result.read_progress(record) == RunProgress(0.25, 0.5)
    result.progress(1.0, loss=2.0, images_per_second=100)
    assert result.read_progress(record) == RunProgress(1.0, None, 2.0, 100)
    monkeypatch.setenv("GRADWIRE_RANK", "1")
    result.progress(0.5, accuracy=0.1)
    assert result.read_progress(record) == RunProgress(1.0, None, 2.0, 100)


def test_progress_outside_an_experiment_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADWIRE_RESULT", raising=False)
    result.progress(0.5, accuracy=0.1)


@pytest.mark.parametrize("given", [{"done": 50.0}, {"done": 0.5, "accuracy": 76.0}])
def test_progress_in_per_cent_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="is outside 0 to 1: give a fraction, not per cent"):
        result.progress(**given)  # type: ignore[arg-type]


def test_a_loss_that_is_not_finite_is_left_out(record: Path) -> None:
    result.progress(0.5, loss=float("nan"))
    assert json.loads(record.with_name("result.json.progress").read_text()) == {"done": 0.5}


SCRIPT = """
import time
import gradwire.result
for epoch in range(2):
    gradwire.result.progress((epoch + 1) / 2, accuracy=0.3 + 0.1 * epoch)
    time.sleep(0.8)
gradwire.result.write(accuracy_per_epoch=[0.3, 0.4], took_compression=True)
"""


class Moves:
    """Implements experiment.Progress, and keeps what a run has said."""

    def __init__(self) -> None:
        self.moves: list[RunProgress] = []

    def started(self, arm: str, seed: int) -> None: ...

    def line(self, line: object) -> None: ...

    def moved(self, progress: RunProgress) -> None:
        self.moves.append(progress)

    def finished(self, run: Run) -> None: ...

    def failed(self, failure: RunFailed) -> None: ...


def test_progress_is_heard_while_a_run_goes_on(tmp_path: Path) -> None:
    plan = Plan((sys.executable, "-c", SCRIPT), ("none",), (0,), 2, 0, None, tmp_path / "report")
    heard = Moves()
    began = time.monotonic()
    [run] = ab.run_plan(plan, ab.Conditions(), heard)
    assert isinstance(run, Run), str(run)
    assert [(move.done, move.accuracy) for move in heard.moves] == [(0.5, 0.3), (1.0, 0.4)]
    assert time.monotonic() - began < 60
