"""Metrics for OpenTelemetry: observable instruments of the process's MeterProvider, which the application configures.

An instrument cannot be taken back, so there is one for each metric and process, whichever stores come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gradwire.metrics.table import METRICS, PREFIX, Metric, Value
from gradwire.metrics.writer import needed_module

_UNITS = {"bytes": "By", "seconds": "s", "": "1"}  # UCUM, which OpenTelemetry uses

_live: dict[int, OpenTelemetry] = {}  # by id(); each change of it is one call
_has_instruments = False


class OpenTelemetry:
    """Answers the callbacks of the instruments. Implements Writer.

    Threading: callbacks come on threads of the application's metric readers.
    """

    is_ours = True
    name = "opentelemetry"

    def __init__(self) -> None:
        """Finds the API.

        Raises: ImportError: opentelemetry-api is not installed.
        """
        self._api = needed_module("opentelemetry.metrics", "opentelemetry-sdk", self.name)
        self._labels: dict[str, str] = {}
        self._values: tuple[Value, ...] = ()  # replaced whole

    def begin(self, rank: int, store: str) -> None:
        """Makes the instruments, if this is the first one of the process."""
        global _has_instruments
        self._labels = {"rank": str(rank), "store": store}
        _live[id(self)] = self
        if not _has_instruments:
            _has_instruments = True
            meter = self._api.get_meter(PREFIX)
            make = {"counter": meter.create_observable_counter, "gauge": meter.create_observable_gauge}
            for metric in METRICS:
                make[metric.kind](
                    metric.otel_name, [_callback(metric)], unit=_UNITS[metric.unit], description=metric.help
                )

    def write(self, values: Iterable[Value], step: int) -> None:
        """Replaces what the next callbacks observe."""
        self._values = tuple(values)

    def observations(self, metric: Metric) -> list[Any]:
        """Returns a metric's values with their attributes."""
        found = []
        for value in self._values:
            if value.metric is metric:
                own = {} if metric.label is None else {metric.label: str(value.label_value)}
                found.append(self._api.Observation(value.number, self._labels | own))
        return found

    def close(self) -> None:
        """Lets the callbacks observe nothing of this store any more."""
        _live.pop(id(self), None)


def _callback(metric: Metric) -> Callable[[Any], list[Any]]:
    def observe(_: Any) -> list[Any]:
        return [each for writer in list(_live.values()) for each in writer.observations(metric)]

    return observe
