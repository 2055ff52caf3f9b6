"""How far the predictions of `gradwire plan` are, on stderr: a line on a terminal that goes at the end, else a line
every few seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from gradwire.launch.console import say
from gradwire.plan.planner import Watch

_SECONDS = 10.0  # between two lines where there is no terminal


@contextmanager
def shown() -> Iterator[Watch]:
    """Gives a Watch that shows what it is told."""
    console = Console(stderr=True, markup=False, emoji=False)
    said_at = time.monotonic()
    with console.status("") as status:

        def watch(done: int, count: int, what: str) -> None:
            nonlocal said_at
            text = f"{done} of {count} predicted; {what}"
            status.update(text)
            if not console.is_terminal and time.monotonic() - said_at >= _SECONDS:
                said_at = time.monotonic()
                say(f"plan: {text}")

        yield watch
