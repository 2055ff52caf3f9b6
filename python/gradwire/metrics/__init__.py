"""Metrics of a store, for TensorBoard, W&B, Prometheus, OpenTelemetry and Grafana.

Without a change of the script:

    GRADWIRE_METRICS=prometheus:9400 gradwire run -n 4 python train.py

In a script, for a store that is open:

    gradwire.metrics.start(gradwire.torch.default_store(), "prometheus:9400", SummaryWriter("runs/a"))

Each worker writes its own metrics, with the labels `rank` and `store`. `METRICS` lists them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gradwire.metrics import open_telemetry, prometheus, scalars
from gradwire.metrics.meter import Meter, Store
from gradwire.metrics.scalars import AddsScalars
from gradwire.metrics.table import METRICS, Metric
from gradwire.metrics.writer import Writer
from gradwire.settings import definitions as settings
from gradwire.settings import metrics_targets
from gradwire.settings.metrics_targets import MetricsTarget

__all__ = ["METRICS", "Meter", "Metric", "dashboard", "start"]

_of_settings: Meter | None = None  # that GRADWIRE_METRICS asks for


def start(
    store: Store, *targets: str | AddsScalars | Callable[..., object], interval: float | None = 5.0
) -> Meter:
    """Writes the metrics of a store from now on, until its close().

    | target | what is written |
    |---|---|
    | `"prometheus:9400"`, `"prometheus:HOST:9400"` | http://HOST:PORT/metrics; the port is 9400 plus the local rank |
    | `"textfile:FOLDER"` | FOLDER/gradwire-rank-N.prom, for node exporter's textfile collector |
    | `"tensorboard:FOLDER"` | event files in FOLDER/rank-N |
    | `"opentelemetry"` | instruments of the process's MeterProvider |
    | a SummaryWriter | add_scalar(tag, value, step) |
    | a function, such as wandb.log | log({tag: value, ...}, step=step) |

    A thread reads the store and writes. An error of a target that comes later is one warning, and training goes on.
    W&B wants its steps in order, so give it interval=None, and call write(step) of the result where the script logs its
    loss.

    Args:
        store: a store of gradwire's own, such as gradwire.torch.default_store().
        targets: one or more of the table. Texts may hold several, separated by commas.
        interval: seconds between two samples, 0.1 or more. None: there is no thread, and the script calls write().
            Default: 5.

    Returns: a Meter, with write(step) and stop().

    Raises:
        TypeError: the store has no metrics, or a target is none of the table.
        ValueError: a text cannot be read, there is no target, or the interval is not valid.
        ImportError: a package is missing; says how to install it.
        OSError: a port is in use, or a folder cannot be written.
    """
    if not isinstance(getattr(store, "meters", None), list):
        raise TypeError(
            f"metrics.start: store is {store!r}, expected a store of gradwire's own, such as "
            "gradwire.torch.default_store() or what gradwire.kv.create() returns"
        )
    if interval is not None and not (0.1 <= interval < math.inf):
        raise ValueError(
            f"metrics.start: interval={interval!r}, expected seconds, 0.1 or more, or None: no thread"
        )
    if not targets:
        forms = ", ".join(metrics_targets.FORMS.values())
        raise ValueError(
            f"metrics.start: no target was given: expected {forms}, a SummaryWriter or a function such as wandb.log"
        )
    local_rank = settings.read().local_rank
    with _opened(targets, store.measured_rank if local_rank is None else local_rank) as writers:
        return Meter(store, writers, interval)


def dashboard() -> str:
    """Returns a Grafana dashboard as JSON, for Grafana's "Import dashboard". Its data source is Prometheus."""
    return (Path(__file__).parent / "grafana_dashboard.json").read_text(encoding="utf-8")


@contextlib.contextmanager
def of_settings(values: settings.Settings, *, is_local: bool) -> Iterator[Callable[[Store], None]]:
    """Opens what GRADWIRE_METRICS asks for, before a process joins its job, so that an error keeps nobody waiting.

    Args:
        values: the settings of this process.
        is_local: whether the store that is about to be opened is one of this process alone. It is measured only
            outside of jobs, and only one at a time.

    Yields: a function that is given the open store.

    Raises: as start().
    """
    running = _of_settings if _of_settings is not None and _of_settings.is_running else None
    if values.metrics is None or (is_local and (values.is_in_a_job or running is not None)):
        yield lambda store: None
        return
    if running is not None:  # of a local store: the job's has its port from now on
        running.stop()
    local_rank = (values.rank or 0) if values.local_rank is None else values.local_rank
    with _opened([values.metrics], local_rank) as writers:

        def begin(store: Store) -> None:
            global _of_settings
            _of_settings = Meter(store, writers, values.metrics_interval)

        yield begin


@contextlib.contextmanager
def _opened(targets: Sequence[object], local_rank: int) -> Iterator[list[Writer]]:
    """Makes the writers, and closes them if an error follows."""
    with contextlib.ExitStack() as closing:
        writers: list[Writer] = []
        for target in targets:
            for writer in _writers_of(target, local_rank):
                closing.callback(writer.close)
                writers.append(writer)
        yield writers
        closing.pop_all()


def _writers_of(target: object, local_rank: int) -> Iterator[Writer]:
    if isinstance(target, str):
        for each in _parsed(target):
            yield _made(each, local_rank)
    elif hasattr(target, "add_scalar"):
        yield scalars.Scalars(target)
    elif callable(target):
        yield scalars.LogFunction(target)
    else:
        raise TypeError(
            f"metrics.start: target is {target!r}, expected a text such as 'prometheus:9400', a SummaryWriter or a "
            "function such as wandb.log"
        )


def _parsed(text: str) -> tuple[MetricsTarget, ...]:
    try:
        return metrics_targets.parse(text)
    except ValueError as error:
        raise ValueError(f"metrics.start: {error}") from None


def _made(target: MetricsTarget, local_rank: int) -> Writer:
    if target.kind == "prometheus":
        return prometheus.Endpoint(target.host, target.port, local_rank)
    if target.kind == "textfile":
        return prometheus.TextFile(target.folder)
    if target.kind == "tensorboard":
        return scalars.TensorBoard(target.folder)
    return open_telemetry.OpenTelemetry()
