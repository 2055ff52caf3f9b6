"""Every metric: its name, what it means, and from which entry of a store's stats() it comes.

All writers use this table, and there is no other list of names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

PREFIX = "gradwire"


def _itself(found: Any) -> Any:
    """Returns the entry as it is."""
    return found


@dataclass(frozen=True)
class Metric:
    """One row.

    Attributes:
        name: without the prefix; ends with its unit where Prometheus' conventions ask for it.
        kind: a counter only grows while a store is open; a gauge may fall.
        unit: bytes, seconds, or empty for a number without one.
        help: one sentence.
        stat: the entry of stats() from which it comes; "steps" is the number of optimizer steps, which stats() lacks.
        of: makes the value of that entry: a number; or numbers by the value of `label`; None: not known.
        label: a further label that a metric with several values has. None: it has one value.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: Literal["bytes", "seconds", ""]
    help: str
    stat: str
    of: Callable[[Any], Any] = _itself
    label: str | None = None

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus: counters end with _total."""
        return f"{PREFIX}_{self.name}_total" if self.kind == "counter" else f"{PREFIX}_{self.name}"

    @property
    def otel_name(self) -> str:
        """The name in OpenTelemetry, whose exporters to Prometheus append _total themselves."""
        return f"{PREFIX}.{self.name}"

    def tag(self, label_value: str | None) -> str:
        """The name where names are paths: in TensorBoard and W&B."""
        path = f"{PREFIX}/{self.name}"
        return path if label_value is None else f"{path}/{label_value}"


class Value(NamedTuple):
    """What a metric is now.

    Attributes:
        label_value: of the metric's own label; None: it has none.
    """

    metric: Metric
    label_value: str | None
    number: float


def _pushes(staleness: Mapping[int, int]) -> int | None:
    return sum(staleness.values()) if staleness else None


def _total_staleness(staleness: Mapping[int, int]) -> int | None:
    return sum(steps * pushes for steps, pushes in staleness.items()) if staleness else None


def _by_rank(rounds: Iterable[int]) -> dict[str, int]:
    return {str(rank): count for rank, count in enumerate(rounds)}


METRICS: tuple[Metric, ...] = (
    Metric(
        "steps",
        "counter",
        "",
        "Steps of the PyTorch optimizer that has taken the most since the start.",
        stat="steps",
    ),
    Metric("bytes_raw", "counter", "bytes", "Gradients that were pushed, as float32.", stat="bytes_raw"),
    Metric(
        "bytes_encoded",
        "counter",
        "bytes",
        "Payloads that were made of the gradients.",
        stat="bytes_encoded",
    ),
    Metric(
        "bytes_sent",
        "counter",
        "bytes",
        "Bytes sent at the sockets, with headers and control messages.",
        stat="bytes_sent",
    ),
    Metric(
        "bytes_received",
        "counter",
        "bytes",
        "Bytes received at the sockets, as bytes_sent.",
        stat="bytes_received",
    ),
    Metric(
        "compression_ratio",
        "gauge",
        "",
        "bytes_raw over bytes_encoded, since the store was opened.",
        stat="ratio",
    ),
    Metric(
        "residual_norm",
        "gauge",
        "",
        "Euclidean norm of what this worker's codecs have not sent yet.",
        stat="residual_norm",
    ),
    Metric(
        "share_sent_ratio",
        "gauge",
        "",
        "Share of gradient plus residual, in squares, that the codecs sent: 1 - vNMSE of this worker's payloads.",
        stat="share_sent",
    ),
    Metric(
        "codec_seconds",
        "counter",
        "seconds",
        "Time in encoders and decoders, summed over all threads.",
        stat="codec_seconds",
    ),
    Metric(
        "exposed_seconds",
        "counter",
        "seconds",
        "Time that the caller waited for sums: communication that was not hidden behind computation.",
        stat="exposed_seconds",
    ),
    Metric(
        "stale_pushes",
        "counter",
        "",
        "In dist_async*: partitions that were pushed.",
        stat="staleness",
        of=_pushes,
    ),
    Metric(
        "staleness",
        "counter",
        "",
        "In dist_async*: sum of the staleness of all pushed partitions; divide by stale_pushes for the mean.",
        stat="staleness",
        of=_total_staleness,
    ),
    Metric(
        "servers_replaced",
        "gauge",
        "",
        "Servers that died and whose mirrors serve in their place.",
        stat="replaced_servers",
        of=len,
    ),
    Metric(
        "rounds_waited_for",
        "counter",
        "",
        "Rounds of a partition that completed only when the push of waited_rank came.",
        stat="waited_for",
        of=_by_rank,
        label="waited_rank",
    ),
    Metric("slowest_rank", "gauge", "", "The rank with the most rounds_waited_for.", stat="slowest_rank"),
    Metric(
        "bytes_mirrored",
        "counter",
        "bytes",
        "Payload that servers forwarded to their mirrors.",
        stat="bytes_mirrored",
    ),
)


def values_of(stats: Mapping[str, Any]) -> tuple[Value, ...]:
    """Returns the values of all metrics that are known.

    Args:
        stats: what stats() has returned. Entries may be missing or None.
    """
    found = []
    for metric in METRICS:
        entry = stats.get(metric.stat)
        number = None if entry is None else metric.of(entry)
        if isinstance(number, Mapping):
            found += [Value(metric, key, float(each)) for key, each in number.items()]
        elif number is not None:
            found.append(Value(metric, None, float(number)))
    return tuple(found)
