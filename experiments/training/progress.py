"""What a training script says and counts while it runs."""

from __future__ import annotations

import statistics
import time
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


class Meter:
    """Bytes that this worker's sockets have sent and received."""

    def __init__(self, store: Any) -> None:
        self._engine = store.engine
        self.per_step: list[int] = []
        self._before = self.total()

    def total(self) -> int:
        counters = self._engine.counters()
        return counters["bytes_sent"] + counters["bytes_received"]

    def step(self) -> None:
        now = self.total()
        self.per_step.append(now - self._before)
        self._before = now

    def median(self) -> int:
        """Returns the median step's bytes; the first round, which agrees on scales, is apart."""
        return int(statistics.median(self.per_step[1:] or self.per_step or [0]))
