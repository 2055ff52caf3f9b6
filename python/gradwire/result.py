"""The record that a training script leaves for `gradwire ab`: accuracy or loss per epoch, and what it cost.

In a script, on every rank; only rank 0 of a job started by `gradwire ab` writes:

    import gradwire.result
    gradwire.result.write(accuracy_per_epoch=[0.81, 0.86])
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gradwire.settings import definitions as settings
from gradwire.stores import codec_override

Metric = Literal["accuracy", "loss"]


@dataclass(frozen=True)
class RunResult:
    """What one run reached.

    Attributes:
        metric: what per_epoch holds: accuracy as a fraction, more is better; or loss, less is better.
        per_epoch: the metric at the end of each epoch; at least one. A loss may be NaN or infinite: training diverged.
        seconds_per_epoch: training seconds from the start to the end of each epoch, or none.
        images_per_second: of all workers together.
        bytes_per_step: median bytes of one worker at the socket, sent and received, in one step.
        steps: of the optimizer, in the whole run.
        bytes_total: all bytes of one worker at the socket.
        codec_seconds: one worker's seconds of encoding and decoding, all threads.
        weights_sha256: names the weights at the end: equal where all bits are.
        took_compression: whether a store compressed by GRADWIRE_COMPRESSION; None: not known, or there is none.
    """

    metric: Metric
    per_epoch: tuple[float, ...]
    seconds_per_epoch: tuple[float, ...] | None = None
    images_per_second: float | None = None
    bytes_per_step: float | None = None
    steps: float | None = None
    bytes_total: float | None = None
    codec_seconds: float | None = None
    weights_sha256: str | None = None
    took_compression: bool | None = None

    @property
    def diverged(self) -> bool:
        """Whether the metric is NaN or infinite at the end of some epoch."""
        return not all(map(math.isfinite, self.per_epoch))

    @property
    def final(self) -> float:
        """The metric at the end of the last epoch."""
        return self.per_epoch[-1]

    @property
    def best(self) -> float:
        """The best of all epochs."""
        return max(self.per_epoch) if self.metric == "accuracy" else min(self.per_epoch)


def write(**record: Any) -> None:
    """Writes record, with fields as in RunResult ("accuracy_per_epoch" or "loss_per_epoch" is required), to
    GRADWIRE_RESULT. Does nothing where that is not set, and on ranks other than 0.

    Raises: ValueError: what `gradwire ab` could not use.
    """
    values = settings.read()
    if values.result is None or values.rank not in (None, 0):
        return
    parse(record)
    if values.compression is not None:
        record = {"took_compression": codec_override.is_taken()} | record
    path = Path(values.result)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(json.dumps(record), encoding="utf-8")
    os.replace(unfinished, path)


def read(path: Path) -> RunResult:
    """Reads a record.

    Raises:
        FileNotFoundError: nothing was written.
        ValueError: it is no record; says what is wrong with which field.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"result: the record is not JSON ({error})") from None
    return parse(record)


def parse(record: Any) -> RunResult:
    """Checks a record as JSON gives it.

    Raises: ValueError: says what is wrong with which field.
    """
    if not isinstance(record, dict):
        raise ValueError(
            f"result: the record is {type(record).__name__}, expected an object with accuracy_per_epoch"
        )
    metric: Metric = "accuracy" if any(_values(record, f"accuracy{end}") for end in _ENDS) else "loss"
    # A loss that is NaN is a result: an experiment has to say which codec diverged.
    per_epoch = next((found for end in _ENDS if (found := _numbers(record, metric + end))), None)
    if per_epoch is None:
        fields = ", ".join(sorted(record)) or "nothing"
        raise ValueError(f"result: the record has {fields}, expected accuracy_per_epoch or loss_per_epoch")
    if metric == "accuracy" and not all(0 <= value <= 1 for value in per_epoch):
        raise ValueError(
            f"result: accuracy {per_epoch[-1]:g} is outside 0 to 1: write a fraction, not per cent"
        )
    seconds = _values(record, "seconds_per_epoch")
    if seconds is not None and (len(seconds) != len(per_epoch) or sorted(seconds) != list(seconds)):
        raise ValueError(
            f"result: seconds_per_epoch has {len(seconds)} values for {len(per_epoch)} epochs, or falls: "
            "expected the seconds from the start to the end of each epoch"
        )
    if seconds is not None and not (seconds[0] >= 0 and seconds[-1] > 0):
        raise ValueError(f"result: seconds_per_epoch is {list(seconds)}, expected times above 0")
    names = ("images_per_second", "bytes_per_step", "steps", "bytes_total", "codec_seconds")
    numbers = {name: found[0] for name in names if (found := _values(record, name))}
    if below := [name for name, value in numbers.items() if value < 0]:
        raise ValueError(f"result: {below[0]} is {numbers[below[0]]:g}, expected 0 or more")
    return RunResult(
        metric,
        per_epoch,
        seconds,
        weights_sha256=record.get("weights_sha256"),
        took_compression=record.get("took_compression"),
        **numbers,
    )


_ENDS = ("_per_epoch", "")


def _values(record: dict[str, Any], name: str) -> tuple[float, ...] | None:
    """Returns the finite numbers of a field that holds one or a list; None where it is absent."""
    values = _numbers(record, name)
    if values is not None and not all(map(math.isfinite, values)):
        raise ValueError(f"result: {name} is {record[name]!r}, expected finite numbers")
    return values


def _numbers(record: dict[str, Any], name: str) -> tuple[float, ...] | None:
    """As _values(), NaN and infinity among them."""
    given = record.get(name)
    if given is None or given == []:
        return None
    values = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if not all(isinstance(value, int | float) for value in values):
        raise ValueError(f"result: {name} is {given!r}, expected finite numbers")
    return tuple(float(value) for value in values)
