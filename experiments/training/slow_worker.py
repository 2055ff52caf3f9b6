"""--slow-worker: a worker that takes longer for its steps than it has to."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch


class SlowWorker(NamedTuple):
    """Which worker is slow, and how many times as long as its own its steps take."""

    rank: int
    factor: float


def parse(text: str) -> SlowWorker:
    """Reads RANK:FACTOR.

    Raises: ValueError: it is something else.
    """
    rank, _, factor = text.partition(":")
    try:
        found = SlowWorker(int(rank), float(factor))
    except ValueError:
        found = SlowWorker(-1, 0)
    if found.rank < 0 or not 1 <= found.factor < float("inf"):
        raise ValueError(f"--slow-worker {text}: expected RANK:FACTOR with a factor of 1 or more, as 3:3")
    return found


class Slowness:
    """Makes each step of one worker take `factor` times as long as it computes.

    What counts as computing ends with the last gradient of backward(): what it waits for afterwards, sums or weights,
    is others' time.
    """

    def __init__(self, model: torch.nn.Module, factor: float) -> None:
        self._extra = factor - 1
        self._began = self._computed = 0.0
        if self._extra > 0:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(self._note)

    def _note(self, _: torch.Tensor) -> None:
        self._computed = time.perf_counter()

    def begin_step(self) -> None:
        self._began = self._computed = time.perf_counter()

    def end_backward(self) -> None:
        """Sleeps for what the worker is slower."""
        if self._extra > 0:
            time.sleep(self._extra * (self._computed - self._began))
