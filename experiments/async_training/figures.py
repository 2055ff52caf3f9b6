"""What the runs say: the table, the curves, and how stale pushes were."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire import result
from gradwire.ab.experiment import Run
from gradwire.ab.summary import seconds_to, write_interval
from gradwire.report.chart import Bar, Panel, Series, line_chart, panel_chart, standalone
from gradwire.report.paired_statistics import paired_ratio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training.near_target import near_target

SLOW_RANK = 3
FIELDS = (
    *(
        "arm",
        "seed",
        "accuracy",
        "accuracy_per_epoch",
        "training_loss_per_epoch",
        "seconds_per_epoch",
        "images_per_second",
    ),
    *("bytes_per_step", "steps", "staleness_per_worker", "wall_seconds", "dataset"),
)
BINS = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 7), (8, 15), (16, 31), (32, 2**63))
TITLES = (
    "arm",
    "final accuracy, %",
    "target after, s",
    "times {base}'s",
    "images/s",
    "staleness: mean",
    "most",
)


def describe(run: Mapping[str, Any]) -> str:
    return f"accuracy {run['accuracy']:.4f} in the end, {run['seconds_per_epoch'][-1]:.1f} s of rank 0's"


def runs_of(results: Mapping[str, Any], arm: str) -> list[Run]:
    rows = sorted((row for row in results["runs"] if row["arm"] == arm), key=lambda row: row["seed"])
    return [Run(arm, row["seed"], result.parse(row), row["wall_seconds"]) for row in rows]


def staleness_of(results: Mapping[str, Any], arm: str, ranks: Sequence[int] | None = None) -> dict[int, int]:
    """How many parts were pushed at each staleness, over all seeds, by these workers; None: by all."""
    counts: dict[int, int] = {}
    for row in results["runs"]:
        workers = row["staleness_per_worker"] if row["arm"] == arm else None
        for rank, own in enumerate(workers or ()):
            for staleness, parts in own.items() if ranks is None or rank in ranks else ():
                counts[int(staleness)] = counts.get(int(staleness), 0) + parts
    return dict(sorted(counts.items()))


def table(results: Mapping[str, Any]) -> str:
    """The target is half a point below the first arm's mean final accuracy, if all of its runs reached that."""
    arms = results["arms"]
    base = runs_of(results, arms[0])
    target, reason = near_target(base)
    titles = [title.format(base=arms[0]) for title in TITLES]
    lines = [
        f"Target: {100 * target:.2f} %, {reason}.",
        "",
        f"| {' | '.join(titles)} |",
        "|---" * len(titles) + "|",
    ]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(results, arm, base, target))} |" for arm in arms)])


def _cells(results: Mapping[str, Any], arm: str, base: Sequence[Run], target: float) -> list[str]:
    runs, counts = runs_of(results, arm), staleness_of(results, arm)
    times = [seconds_to(run, target) for run in runs]
    reached = [time for time in times if time is not None]
    of_base = [seconds_to(run, target) for run in base]
    ratio = ""
    if len(reached) == len(times) and None not in of_base:
        ratio = write_interval(paired_ratio(reached, [float(time or 0) for time in of_base]), "{:.2f}")
    pushes = sum(counts.values())
    return [
        arm,
        f"{100 * statistics.fmean(row['accuracy'] for row in results['runs'] if row['arm'] == arm):.2f}",
        f"{statistics.fmean(reached):.1f}"
        if len(reached) == len(times)
        else f"not by {len(times) - len(reached)}",
        ratio,
        f"{statistics.fmean(run.speed() for run in runs):,.0f}",
        f"{sum(staleness * parts for staleness, parts in counts.items()) / pushes:.2f}" if pushes else "",
        str(max(counts)) if pushes else "",
    ]


def accuracy(results: Mapping[str, Any]) -> str:
    """Accuracy against rank 0's seconds: mean and range over seeds, epoch by epoch."""
    series = []
    for arm in results["arms"]:
        runs = runs_of(results, arm)
        epochs = list(zip(*(run.result.per_epoch for run in runs), strict=True))
        series.append(
            Series(
                arm,
                tuple(statistics.fmean(at) for at in zip(*(run.seconds() for run in runs), strict=True)),
                tuple(map(statistics.fmean, epochs)),
                tuple(map(min, epochs)),
                tuple(map(max, epochs)),
            )
        )
    chart = line_chart(series, "seconds", "accuracy", lambda x: f"{x:g}", lambda y: f"{y:.2f}", legend=True)
    return standalone(chart)


def staleness(results: Mapping[str, Any]) -> str:
    """Which share of pushes was how stale, of the slow worker and the others, in each arm that applies them at once."""
    panels = []
    for arm in results["arms"]:
        workers = next((row["staleness_per_worker"] for row in results["runs"] if row["arm"] == arm), None)
        if not workers:
            continue
        fast = [rank for rank in range(len(workers)) if rank != SLOW_RANK]
        for title, ranks, colour in (("the slow worker", [SLOW_RANK], 1), ("the others", fast, 0)):
            panels.append(Panel(f"{arm}: {title}", _bars(staleness_of(results, arm, ranks), colour)))
    return standalone(panel_chart(panels, lambda share: f"{share:.1f} %"))


def _bars(counts: Mapping[int, int], colour: int) -> tuple[Bar, ...]:
    total = sum(counts.values()) or 1
    bars = []
    for low, high in BINS:
        parts = sum(count for staleness, count in counts.items() if low <= staleness <= high)
        name = str(low) if low == high else f"{low} to {high}" if high < 2**63 else f"{low} and more"
        bars.append(Bar(name, 100 * parts / total, colour=colour))
    return tuple(bars)
