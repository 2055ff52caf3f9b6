"""What a training script says and counts while it runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO


@dataclass
class Progress:
    """Rank 0's lines, one per epoch, and a line that moves where they go to a terminal."""

    stream: TextIO | None
    shown: float = 0.0

    def say(self, text: str) -> None:
        if self.stream is not None:
            print(("\r\x1b[K" if self.stream.isatty() else "") + text, file=self.stream, flush=True)

    def move(self, text: str) -> None:
        now = time.perf_counter()
        if self.stream is not None and self.stream.isatty() and now - self.shown > 0.2:
            print(f"\r\x1b[K{text}", end="", file=self.stream, flush=True)
            self.shown = now


def socket_bytes(store: Any) -> Callable[[], int]:
    """Returns what counts the bytes that this worker's sockets have sent and received."""

    def count() -> int:
        counters = store.engine.counters()
        return int(counters["bytes_sent"] + counters["bytes_received"])

    return count


def usual_bytes(per_step: Sequence[int]) -> float:
    """Of steps that are alike: their median, but for the first, which agrees on scales."""
    return statistics.median(per_step[1:] or per_step)


class Meter:
    """Bytes per step. count: all so far; None: nobody knows. typical: what stands for all steps' bytes: that of steps
    that are alike, or their mean where most steps send nothing.
    """

    def __init__(
        self, count: Callable[[], int] | None, typical: Callable[[Sequence[int]], float] = usual_bytes
    ) -> None:
        self._count = count
        self._typical = typical
        self.per_step: list[int] = []
        self._before = self.total() or 0

    def total(self) -> int | None:
        return None if self._count is None else self._count()

    def step(self) -> None:
        if (now := self.total()) is not None:
            self.per_step.append(now - self._before)
            self._before = now

    def end_epoch(self) -> None:
        """Counts what was sent since to the last step: what that left to send."""
        if (now := self.total()) is not None and self.per_step:
            self.per_step[-1] += now - self._before
            self._before = now

    def typical(self) -> int | None:
        if self._count is None:
            return None
        return int(self._typical(self.per_step or [0]))

    def text(self) -> str:
        return "" if self._count is None else f"  {self.typical():,} bytes/step"
