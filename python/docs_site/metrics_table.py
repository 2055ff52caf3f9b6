"""The table of metrics, from gradwire.metrics.METRICS."""

from __future__ import annotations


def table() -> str:
    """Returns a table of all metrics."""
    from gradwire.metrics import METRICS

    rows = []
    for metric in METRICS:
        label = f" By `{metric.label}`." if metric.label else ""
        meaning = f"{metric.help.replace('|', chr(92) + '|')}{label}"
        rows.append(
            f"| `{metric.prometheus_name}` | {metric.kind} | {metric.unit} | `{metric.stat}` | {meaning} |"
        )
    head = ["| Name in Prometheus | Kind | Unit | From `stats()` | Meaning |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])
