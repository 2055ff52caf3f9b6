"""Metrics for what plots numbers by step: TensorBoard's SummaryWriter, and functions such as wandb.log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from gradwire.metrics.table import Value
from gradwire.metrics.writer import needed_module, writable_folder


class AddsScalars(Protocol):
    """What torch.utils.tensorboard.SummaryWriter has, and tensorboardX's."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Records a number."""


class Scalars:
    """Writes to a SummaryWriter of the script's. Implements Writer."""

    is_ours = False

    def __init__(self, summary: AddsScalars) -> None:
        self.name = type(summary).__name__
        self._summary = summary

    def begin(self, rank: int, store: str) -> None:
        """Does nothing: the script chose the place."""

    def write(self, values: Iterable[Value], step: int) -> None:
        """Records each value by its tag, such as gradwire/bytes_sent."""
        for value in values:
            self._summary.add_scalar(value.metric.tag(value.label_value), value.number, step)

    def close(self) -> None:
        """Leaves the SummaryWriter open: it is the script's."""


class TensorBoard:
    """Writes event files to FOLDER/rank-N, which TensorBoard shows as a run for each rank. Implements Writer."""

    is_ours = True

    def __init__(self, folder: str) -> None:
        """Makes the folder.

        Raises:
            ImportError: torch or tensorboard is not installed.
            OSError: the folder cannot be made or written; says why.
        """
        self.name = f"tensorboard:{folder}"
        self._module = needed_module("torch.utils.tensorboard", "torch tensorboard", self.name)
        self._folder = writable_folder(folder, self.name)
        self._summary: Any = None

    def begin(self, rank: int, store: str) -> None:
        """Opens the event file."""
        self._summary = self._module.SummaryWriter(str(self._folder / f"rank-{rank}"))

    def write(self, values: Iterable[Value], step: int) -> None:
        """Records each value by its tag, and has the file written."""
        Scalars(self._summary).write(values, step)
        self._summary.flush()

    def close(self) -> None:
        """Closes the event file."""
        if self._summary is not None:
            self._summary.close()


class LogFunction:
    """Calls a function with a dictionary of all values, as wandb.log(values, step=7). Implements Writer."""

    is_ours = False

    def __init__(self, log: Callable[..., object]) -> None:
        self.name = getattr(log, "__qualname__", type(log).__name__)
        self._log = log

    def begin(self, rank: int, store: str) -> None:
        """Does nothing: the script chose the place."""

    def write(self, values: Iterable[Value], step: int) -> None:
        """Calls the function once."""
        self._log({value.metric.tag(value.label_value): value.number for value in values}, step=step)

    def close(self) -> None:
        """Does nothing: the place is the script's."""
