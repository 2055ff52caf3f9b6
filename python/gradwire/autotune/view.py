"""What a person sees while `gradwire tune` runs: a bar, what is launched, rank 0's last line; else a line a launch."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from gradwire.autotune.box import Box, Setting
from gradwire.autotune.outcome import Stage, Trial
from gradwire.child import Line
from gradwire.units import format_duration


class View:
    """A Watcher on a console."""

    def __init__(self, console: Console, box: Box) -> None:
        self._console, self._box = console, box
        self._live = console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task("launches", total=None)
        self._last = Text("", style="dim", no_wrap=True, overflow="ellipsis")
        self._display = Live(
            Group(self._bar, self._last), console=console, refresh_per_second=4, transient=True
        )
        self._count = 0

    def __enter__(self) -> View:
        if self._live:
            self._display.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._display.stop()

    def expects(self, launches: int, seconds: float, steps: int) -> None:
        self._bar.update(self._task, total=self._count + launches)
        self.says(
            f"at most {launches} launches of {steps} steps, about {format_duration(seconds)} each: "
            f"{format_duration(launches * seconds)} in all; Ctrl-C stops, and keeps what was found"
        )

    def says(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def started(self, stage: Stage, setting: Setting) -> None:
        self._bar.update(self._task, description=f"{stage}: {self._box.text(setting)}")
        self._last.plain = ""

    def line(self, line: Line) -> None:
        """Takes what a process of the job writes."""
        if (line.role, line.rank) == ("worker", 0) and line.text.strip():
            self._last.plain = line.text

    def finished(self, trial: Trial) -> None:
        self._count += 1
        self._bar.advance(self._task)
        took = (
            trial.failure if trial.step_seconds is None else f"{format_duration(trial.step_seconds)} a step"
        )
        self.says(
            f"{self._count:3} {trial.stage:6} {self._box.text(trial.setting)}: {took}, launch "
            f"{format_duration(trial.wall_seconds)}"
        )
