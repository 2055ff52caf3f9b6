"""UnfinishedLines: shows the beginning of a line that nobody ends, such as a prompt.

Most lines that are read in two parts are whole a moment later. So a beginning is shown only after it has waited, once.

Threading: the thread that reads the children's output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire.launch.child import Child, Line, Stream

_WAIT_SECONDS = 0.1  # after which what is there of a line counts as a prompt that nobody ends


class UnfinishedLines:
    """Times are those of time.monotonic()."""

    def __init__(self, show: Callable[[Line], None] | None) -> None:
        """show: takes the beginning of a line; None: nobody wants to see any."""
        self._show = show
        self._due: dict[tuple[Child, Stream], float] = {}

    def note_read(self, child: Child, stream: Stream, now: float) -> None:
        """Says that a child's stream was read: what is there of its last line waits from now on."""
        self._due.pop((child, stream), None)
        if self._show is not None and child.splitters[stream].unfinished is not None:
            self._due[child, stream] = now + _WAIT_SECONDS

    def forget(self, child: Child) -> None:
        """Says that a child has ended, so that its last lines come anyway."""
        self._due = {key: at for key, at in self._due.items() if key[0] is not child}

    @property
    def next_due(self) -> float | None:
        """When show_due() has something to do; None: nothing waits."""
        return min(self._due.values(), default=None)

    def show_due(self, now: float) -> None:
        """Shows what has waited long enough."""
        for (child, stream), at in list(self._due.items()):
            line = child.splitters[stream].unfinished
            if now >= at:
                del self._due[child, stream]
                if self._show is not None and line is not None:
                    self._show(line)
