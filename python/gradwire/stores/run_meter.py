"""Counts steps, examples and bytes of a run under `gradwire ab`, for what a script's record does not give.

A script that passes nothing but its accuracies to gradwire.result.write() gets the rest from here. The first store of
the process starts the meter, and only on rank 0 of such a run; otherwise nothing is counted.

Steps are those of PyTorch's optimizers. A batch is what goes into the first module that is called in training mode: its
first tensor's first dimension is the number of examples. Both come from PyTorch's hooks, so in a script without PyTorch
only bytes and codec seconds are known.

Threading: called from the thread that trains.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire import _core

PROGRESS_SUFFIX = ".progress"  # of the file beside the record
_SHOWN_EVERY = 0.5  # seconds
_RECENT = 50  # steps whose speed is shown while a run goes on


class RunMeter:
    """What one run has done so far. file: the record's path, beside which progress is shown."""

    def __init__(self, engine: _core.Engine, file: str) -> None:
        self._file = Path(file)
        self._began = time.perf_counter()
        self._ends: list[float] = []  # of steps
        self._examples: list[int] = []  # per step, of this worker
        self._bytes: list[int] = []  # per step
        self._batch = 0
        self._said: dict[str, Any] = {}  # by the script, of its progress
        self._shown_at = 0.0
        self.follow(engine)

    def follow(self, engine: _core.Engine) -> None:
        """Counts at this engine from now on: an elastic job has a new one in each generation."""
        self._engine = engine
        self._before = self._total_bytes()

    def add_batch(self, examples: int) -> None:
        self._batch += examples

    def end_step(self) -> None:
        """Counts a step, unless no batch came since the last one: then this is another optimizer of the same step."""
        if not self._batch:
            return
        total = self._total_bytes()
        self._ends.append(time.perf_counter())
        self._examples.append(self._batch)
        self._bytes.append(total - self._before)
        self._batch, self._before = 0, total
        self.show()

    def say(self, values: dict[str, Any]) -> None:
        """Takes what the script says of its progress. A new accuracy or loss is shown at once."""
        is_new = any(self._said.get(name) != values.get(name) for name in ("accuracy", "loss"))
        self._said |= values
        self.show(at_once=is_new)

    def show(self, *, at_once: bool = False) -> None:
        """Writes the progress file, at most twice a second."""
        now = time.perf_counter()
        if not at_once and now - self._shown_at < _SHOWN_EVERY:
            return
        self._shown_at = now
        write_progress(self._file, {"images_per_second": self._recent_speed(), **self._said})

    def figures(self, epochs: int) -> dict[str, Any]:
        """Returns the fields of a record that are known here.

        bytes_per_step is the median of all steps but the first, in which codecs agree on scales. images_per_second is
        of all workers together, from the median step. Where most steps send little beside the others (heartbeats
        between two rounds of local steps), both are from the mean, which has all that was sent and waited for.
        seconds_per_epoch assumes epochs of equally many steps.
        """
        found: dict[str, Any] = {}
        with contextlib.suppress(RuntimeError, ConnectionError):  # the store has been closed
            found["bytes_total"] = self._total_bytes()
            found["codec_seconds"] = self._engine.codec_seconds()
        steps = len(self._ends)
        if not steps:
            return found
        usual = self._bytes[1:] or self._bytes
        found["steps"] = steps
        typical = statistics.median if _are_alike(usual) else statistics.fmean
        found["bytes_per_step"] = typical(usual)
        if steps >= epochs:
            last = [self._ends[steps * (epoch + 1) // epochs - 1] for epoch in range(epochs)]
            found["seconds_per_epoch"] = [end - self._began for end in last]
        if steps > 1:
            taken = [end - start for start, end in zip(self._ends, self._ends[1:], strict=False)]
            if (seconds := typical(taken)) > 0:
                found["images_per_second"] = self._workers * statistics.fmean(self._examples[1:]) / seconds
        return found

    @property
    def _workers(self) -> int:
        return self._engine.num_workers

    def _recent_speed(self) -> float | None:
        ends = self._ends[-_RECENT:]
        if len(ends) < 2 or ends[-1] <= ends[0]:
            return None
        return self._workers * sum(self._examples[-len(ends) + 1 :]) / (ends[-1] - ends[0])

    def _total_bytes(self) -> int:
        counters = self._engine.counters()
        return int(counters["bytes_sent"] + counters["bytes_received"])


def _are_alike(sent: Sequence[int]) -> bool:
    """Whether a step's median of bytes says what the others send: it is half of the mean or more."""
    return 2 * statistics.median(sent) >= statistics.fmean(sent)


_meter: RunMeter | None = None  # of this process
_is_hooked = False


def start(engine: _core.Engine, file: str | None) -> None:
    """Begins to count at a store's engine. file: where the run's record goes; None: there is no such run."""
    global _meter
    if file is None or engine.rank != 0:
        return
    if _meter is None:
        _meter = RunMeter(engine, file)
    else:
        _meter.follow(engine)
    _hook_torch()


def current() -> RunMeter | None:
    """Returns this process's meter. None: it is not rank 0 of an experiment's run, or has no store of a job."""
    return _meter


def write_progress(record: Path, values: dict[str, Any]) -> None:
    """Replaces the progress file beside a record."""
    path = record.with_name(record.name + PROGRESS_SUFFIX)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(json.dumps(values), encoding="utf-8")
    os.replace(unfinished, path)


def _hook_torch() -> None:
    """Watches PyTorch's optimizers and the model, if the script has imported torch."""
    global _is_hooked
    if _is_hooked or "torch" not in sys.modules:
        return
    _is_hooked = True
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def before_first_forward(module: Any, inputs: tuple[Any, ...]) -> None:
        """Goes on at this module alone: a hook on all modules would be traced by torch.compile."""
        if _trains(module):
            handle.remove()
            module.register_forward_pre_hook(_before_forward, with_kwargs=True)
            _before_forward(module, inputs, {})

    handle = register_module_forward_pre_hook(before_first_forward)
    register_optimizer_step_post_hook(_after_step)


# Functions of this module, not methods: a model that is copied or pickled takes its hooks along.
def _before_forward(module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
    if _meter is not None and _trains(module):
        import torch

        given = (*inputs, *named.values())
        _meter.add_batch(next((int(x.shape[0]) for x in given if torch.is_tensor(x) and x.dim() > 0), 1))


def _after_step(*_: Any) -> None:
    if _meter is not None:
        _meter.end_step()


def _trains(module: Any) -> bool:
    import torch

    return bool(module.training) and torch.is_grad_enabled()
