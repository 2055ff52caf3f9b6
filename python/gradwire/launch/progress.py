"""What a person sees on a terminal while jobs run one after the other: a bar, which one, and rank 0's last line."""

from __future__ import annotations

from typing import TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from gradwire.launch.child import Line

Self = TypeVar("Self", bound="LiveJob")


class LiveJob:
    """That bar; a context. On a stream that is no terminal it shows nothing, and lines are for its classes to print.

    Attributes:
        console: where it is; what is printed there meanwhile goes above it.
        is_live: whether it is shown.
    """

    def __init__(self, console: Console, what: str, total: int | None) -> None:
        """
        Args:
            what: jobs are called, before the first begins.
            total: how many there are to be; None: not known yet.
        """
        self.console = console
        self.is_live = console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console)
        self._task = self._bar.add_task(what, total=total)
        self._last = Text("", style="dim", no_wrap=True, overflow="ellipsis")
        self._display = Live(
            Group(self._bar, self._last), console=console, refresh_per_second=8, transient=True
        )

    def __enter__(self: Self) -> Self:
        if self.is_live:
            self._display.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_live:
            self._display.stop()

    def expect(self, total: int) -> None:
        """Sets how many jobs there are to be."""
        self._bar.update(self._task, total=total)

    def begin(self, description: str) -> None:
        """Says which job is under way."""
        self._bar.update(self._task, description=description)
        self._last.plain = ""

    def line(self, line: Line) -> None:
        """Takes what a process of the job writes."""
        if (line.role, line.rank) == ("worker", 0) and line.text.strip():
            self._last.plain = line.text

    def advance(self) -> None:
        """Counts a job that has ended."""
        self._bar.advance(self._task)
