"""Shows an experiment on a terminal while it runs: a row per arm. On a stream that is no terminal: plain lines."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gradwire.ab.conclusions import write_seconds
from gradwire.ab.experiment import Run, RunFailed
from gradwire.ab.names import arm_name
from gradwire.launch.child import Line
from gradwire.result import RunProgress

Self = TypeVar("Self", bound="ProgressView")
_PLAIN_SECONDS = 10.0  # between two plain lines of a run, unless its accuracy is new
_LEAST_DONE = 0.03  # share of a run from which its time left is told
_NAME_WIDTH = 24


@dataclass
class _Arm:
    """What is known of one arm so far."""

    walls: list[float] = field(default_factory=list)  # seconds of the runs that ended
    finals: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    failures: int = 0

    @property
    def ended(self) -> int:
        return len(self.walls) + self.failures


class ProgressView:
    """Implements experiment.Progress on a console. A context: the live display stands within it.

    Threading: moved() and the console's refresh come from threads of their own. They read and replace whole values, and
    lock nothing.
    """

    def __init__(self, console: Console, arms: Sequence[str], seeds: int) -> None:
        self.console = console
        self._seeds = seeds
        self._arms = {arm: _Arm() for arm in arms}
        self._running: tuple[str, int] | None = None
        self._progress = RunProgress()
        self._began = self._run_began = time.monotonic()
        self._told_at = 0.0
        self._told_value: float | None = None
        self._last = ""  # rank 0's last line
        self._metric = "accuracy"
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def __enter__(self: Self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def started(self, arm: str, seed: int) -> None:
        self._run_began = self._told_at = time.monotonic()
        self._progress, self._told_value, self._last = RunProgress(), None, ""
        self._running = (arm, seed)
        if not self.console.is_terminal:
            number = 1 + sum(each.ended for each in self._arms.values())
            total = len(self._arms) * self._seeds
            self._print(f"{arm_name(arm)}, seed {seed}: run {number} of {total} begins")

    def line(self, line: Line) -> None:
        if (line.role, line.rank) == ("worker", 0) and line.text.strip():
            self._last = line.text

    def moved(self, progress: RunProgress) -> None:
        self._progress = progress
        if self.console.is_terminal or self._running is None:
            return
        value = _value(progress)
        now = time.monotonic()
        if value == self._told_value and now - self._told_at < _PLAIN_SECONDS:
            return
        self._told_at, self._told_value = now, value
        arm, seed = self._running
        if progress.done is None and value is None and progress.images_per_second is None:
            return  # the job has only begun
        known = [self._done_text(), self._value_text(value), _speed_text(progress.images_per_second)]
        if (left := self._seconds_left(arm)) is not None:
            known.append(f"{write_seconds(left)} left")
        self._print(f"{arm_name(arm)}, seed {seed}: {', '.join(text for text in known if text)}")

    def finished(self, run: Run) -> None:
        self._metric = run.result.metric
        arm = self._arms[run.arm]
        arm.walls.append(run.wall_seconds)
        if not run.result.diverged:
            arm.finals.append(run.result.final)
        if run.result.images_per_second is not None:
            arm.speeds.append(run.result.images_per_second)
        self._running = None
        value = "diverged" if run.result.diverged else self._value_text(run.result.final)
        speed = _speed_text(run.result.images_per_second)
        parts = [value, speed, f"took {write_seconds(run.wall_seconds)}"]
        self._print(f"{arm_name(run.arm)}, seed {run.seed}: {', '.join(part for part in parts if part)}")

    def failed(self, failure: RunFailed) -> None:
        self._arms[failure.arm].failures += 1
        self._running = None
        for line in failure.last_lines:
            self.console.print(Text(f"  | {line}", style="dim"), soft_wrap=True)
        self.console.print(Text(f"{failure}: failed", style="bold"), soft_wrap=True)

    # ---------------------------------------------------------------- what is written

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def _done_text(self) -> str:
        return "" if self._progress.done is None else f"{100 * self._progress.done:.0f} %"

    def _value_text(self, value: float | None) -> str:
        if value is None:
            return ""
        is_accuracy = self._progress.loss is None and self._metric == "accuracy"
        return f"accuracy {100 * value:.1f} %" if is_accuracy else f"loss {value:.4g}"

    def _seconds_left(self, arm: str) -> float | None:
        """Estimates what the run under way still takes, from its own share or from the arm's earlier runs."""
        taken = time.monotonic() - self._run_began
        if self._progress.done is not None and self._progress.done >= _LEAST_DONE:
            return taken * (1 - self._progress.done) / self._progress.done
        walls = self._arms[arm].walls
        return max(0.0, statistics.fmean(walls) - taken) if walls else None

    def _all_left(self) -> float | None:
        """Estimates the whole experiment's time left. None: an arm has neither ended a run nor said how far it is."""
        total = 0.0
        for name, arm in self._arms.items():
            is_running = self._running is not None and self._running[0] == name
            waiting = self._seeds - arm.ended - is_running
            left = self._seconds_left(name) if is_running else 0.0
            whole = statistics.fmean(arm.walls) if arm.walls else None
            if whole is None and is_running and left is not None:
                whole = left + time.monotonic() - self._run_began
            if left is None or (whole is None and waiting):
                return None
            total += left + waiting * (whole or 0.0)
        return total

    def _render(self) -> Group:
        rows = Table.grid(padding=(0, 1))
        rows.add_column(max_width=_NAME_WIDTH, no_wrap=True, overflow="ellipsis")
        rows.add_column(width=16)
        for _ in range(3):
            rows.add_column(justify="right", no_wrap=True)
        for name, arm in self._arms.items():
            rows.add_row(*self._row(name, arm))
        ended = sum(arm.ended for arm in self._arms.values())
        left = self._all_left()
        about = "" if left is None else f", about {write_seconds(left)} left"
        taken = write_seconds(time.monotonic() - self._began)
        status = f"{ended} of {len(self._arms) * self._seeds} runs, {taken}{about}"
        return Group(rows, Text(status), Text(self._last, style="dim", no_wrap=True, overflow="ellipsis"))

    def _row(self, name: str, arm: _Arm) -> list[Text | ProgressBar]:
        is_running = self._running is not None and self._running[0] == name
        done = (self._progress.done or 0.0) if is_running else 0.0
        value = _value(self._progress) if is_running else None
        speed = self._progress.images_per_second if is_running else None
        if value is None and arm.finals:
            value = statistics.fmean(arm.finals)
        if speed is None and arm.speeds:
            speed = statistics.fmean(arm.speeds)
        if is_running:
            left = self._seconds_left(name)
            state = "running" if left is None else f"{write_seconds(left)} left"
        else:
            state = "done" if arm.ended == self._seeds else "waits"
        if arm.failures:
            state += f", {arm.failures} failed"
        return [
            Text(arm_name(name), style="bold" if is_running else ""),
            ProgressBar(total=float(self._seeds), completed=arm.ended + done, width=16),
            Text(self._value_text(value)),
            Text(_speed_text(speed)),
            Text(state),
        ]


def _value(progress: RunProgress) -> float | None:
    return progress.accuracy if progress.loss is None else progress.loss


def _speed_text(speed: float | None) -> str:
    return "" if speed is None else f"{speed:,.0f} samples/s"
