"""What a person sees while `gradwire tune` runs: a bar, what is launched, rank 0's last line; else a line a launch."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from gradwire.autotune.search_space import Box, Setting
from gradwire.autotune.summary import Stage, Trial
from gradwire.launch.progress import LiveJob
from gradwire.settings.units import format_duration


class View(LiveJob):
    """A Watcher on a console."""

    def __init__(self, console: Console, box: Box) -> None:
        super().__init__(console, "launches", None)
        self._box = box
        self._count = 0

    def expects(self, launches: int, seconds: float, steps: int) -> None:
        self.expect(self._count + launches)
        self.says(
            f"at most {launches} launches of {steps} steps, about {format_duration(seconds)} each: "
            f"{format_duration(launches * seconds)} in all; Ctrl-C stops, and keeps what was found"
        )

    def says(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def started(self, stage: Stage, setting: Setting) -> None:
        self.begin(f"{stage}: {self._box.text(setting)}")

    def finished(self, trial: Trial) -> None:
        self._count += 1
        self.advance()
        took = (
            trial.failure if trial.step_seconds is None else f"{format_duration(trial.step_seconds)} a step"
        )
        self.says(
            f"{self._count:3} {trial.stage:6} {self._box.text(trial.setting)}: {took}, launch "
            f"{format_duration(trial.wall_seconds)}"
        )
