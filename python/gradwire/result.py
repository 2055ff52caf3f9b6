"""The record that a training script leaves for `gradwire ab`: accuracy or loss per epoch, and what it cost.

In a script, on every rank. Only rank 0 of a job that `gradwire ab` started writes:

    import gradwire.result
    gradwire.result.write(accuracy_per_epoch=[0.81, 0.86])

A script may also say how far it is, which `gradwire ab` shows while it runs:

    gradwire.result.progress((epoch + 1) / epochs, accuracy=0.81)
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gradwire.settings import definitions as settings
from gradwire.stores import codec_override, run_meter

Metric = Literal["accuracy", "loss"]
_SAID_EVERY = 0.2  # seconds between two calls of progress() that are looked at


@dataclass(frozen=True)
class RunResult:
    """What one run reached.

    Attributes:
        metric: what per_epoch holds: accuracy as a fraction, more is better; or loss, less is better.
        per_epoch: the metric at the end of each epoch; at least one. A loss that is NaN or infinite means that training
            diverged.
        seconds_per_epoch: training seconds from the start to the end of each epoch.
        images_per_second: of all workers together.
        bytes_per_step: one worker's bytes at the socket in one step, sent and received; median over the steps, or mean
            where most steps send little beside the others, as between two rounds of local steps.
        steps: of the optimizer, in the whole run.
        bytes_total: all bytes of one worker at the socket.
        codec_seconds: one worker's seconds of encoding and decoding, all threads.
        weights_sha256: digest of the weights at the end; equal digests mean equal bits.
        took_compression: whether a store compressed by GRADWIRE_COMPRESSION. None: not known, or there is no store. A
            script that compresses by itself gives True.
        has_store: whether the process that wrote the record had a store. None: not known.
        measured: names of the fields that gradwire measured itself, because the script gave none.
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
    has_store: bool | None = None
    measured: tuple[str, ...] = ()

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


@dataclass(frozen=True)
class RunProgress:
    """How far a run is, as its script and its store say. None: not known.

    Attributes:
        done: share of the training, 0 to 1.
        accuracy, loss: at the last evaluation.
        images_per_second: of all workers together, over the last steps.
    """

    done: float | None = None
    accuracy: float | None = None
    loss: float | None = None
    images_per_second: float | None = None


_said_at = -_SAID_EVERY


def progress(
    done: float,
    *,
    accuracy: float | None = None,
    loss: float | None = None,
    images_per_second: float | None = None,
) -> None:
    """Tells `gradwire ab` how far this run is. Cheap enough to be called in every step.

    Does nothing outside such a run, and on ranks other than 0.

    Args:
        done: share of the training that is over, 0 to 1.
        accuracy: at the last evaluation, as a fraction.
        loss: at the last evaluation.
        images_per_second: of all workers together. Default: measured by gradwire, where it can be.

    Raises: ValueError: done or accuracy is outside 0 to 1.
    """
    global _said_at
    for name, value in (("done", done), ("accuracy", accuracy)):
        if value is not None and not 0 <= value <= 1 + 1e-9:
            raise ValueError(
                f"result: progress: {name}={value:g} is outside 0 to 1: give a fraction, not per cent"
            )
    now = time.perf_counter()
    if accuracy is None and loss is None and now - _said_at < _SAID_EVERY:
        return
    _said_at = now
    values = settings.read()
    if values.result is None or values.rank not in (None, 0):
        return
    given = {"done": done, "accuracy": accuracy, "loss": loss, "images_per_second": images_per_second}
    said = {name: float(value) for name, value in given.items() if value is not None and math.isfinite(value)}
    meter = run_meter.current()
    if meter is not None:
        meter.say(said)
    else:
        run_meter.write_progress(Path(values.result), said)


def read_progress(record: Path) -> RunProgress | None:
    """Reads what a run that is to write `record` has said of its progress. None: nothing yet."""
    path = record.with_name(record.name + run_meter.PROGRESS_SUFFIX)
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    names = ("done", "accuracy", "loss", "images_per_second")
    return RunProgress(**{name: given.get(name) for name in names})


def write(**record: Any) -> None:
    """Writes a run's record to GRADWIRE_RESULT. Call it before the store is closed.

    Does nothing where GRADWIRE_RESULT is not set, and on ranks other than 0.

    Args:
        record: fields as in RunResult. "accuracy_per_epoch" or "loss_per_epoch" is required. gradwire measures the
            bytes, codec seconds, images per second, seconds per epoch and steps that the script does not give
            (stores/run_meter.py). A field that is given as None stays unknown. Numbers, arrays and tensors may be those
            of NumPy, PyTorch and other libraries.

    Raises: ValueError: a field that `gradwire ab` could not use; names it.
    """
    values = settings.read()
    if values.result is None or values.rank not in (None, 0):
        return
    record = {field: _plain(field, value) for field, value in record.items()}
    given = parse(record)
    if (meter := run_meter.current()) is not None:
        figures = meter.figures(len(given.per_epoch))
        measured = {name: value for name, value in figures.items() if name not in record}
        record = {**record, **measured, "measured": sorted(measured)}
    if values.compression is not None:
        took = codec_override.is_taken()
        record = {"took_compression": took, "has_store": took is not None} | record
    path = Path(values.result)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(json.dumps(record), encoding="utf-8")
    os.replace(unfinished, path)


def _plain(field: str, value: Any) -> Any:
    """Returns a value of a record as JSON has it: numbers, arrays and tensors of any library as Python's own.

    Raises: ValueError: it cannot be written as JSON; names the field and the type.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(field, each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(field, each) for each in value]
    listed = value.tolist() if hasattr(value, "tolist") else value
    if type(listed) is not type(value):  # as that of NumPy's longdouble is
        return _plain(field, listed)
    if hasattr(value, "__float__"):
        return float(value)
    raise ValueError(f"result: {field} has a value of type {type(value).__name__}, expected numbers or text")


def read(path: Path) -> RunResult:
    """Reads a record.

    Raises:
        FileNotFoundError: nothing was written.
        ValueError: it is not a record; names the field and what is wrong with it.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"result: the record is not JSON ({error})") from None
    return parse(record)


def parse(record: Any) -> RunResult:
    """Checks a record as JSON gives it.

    Raises: ValueError: names the field and what is wrong with it.
    """
    if not isinstance(record, dict):
        raise ValueError(
            f"result: the record is {type(record).__name__}, expected an object with accuracy_per_epoch"
        )
    metric: Metric = "accuracy" if any(_values(record, f"accuracy{end}") for end in _ENDS) else "loss"
    # A loss may be NaN: an experiment has to say which codec diverged.
    per_epoch = next((found for end in _ENDS if (found := _numbers(record, metric + end))), None)
    if per_epoch is None:
        if empty := [name for name in ("accuracy_per_epoch", "loss_per_epoch") if record.get(name) == []]:
            raise ValueError(
                f"result: {empty[0]} is empty: the run trained for no epoch; did it resume from a snapshot of a run "
                "before it?"
            )
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
        has_store=record.get("has_store"),
        measured=tuple(record.get("measured", ())),
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
    """Returns what _values() does, and lets NaN and infinity pass."""
    given = record.get(name)
    if given is None or given == []:
        return None
    values = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if not all(isinstance(value, int | float) for value in values):
        raise ValueError(f"result: {name} is {given!r}, expected finite numbers")
    return tuple(float(value) for value in values)
