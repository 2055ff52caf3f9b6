"""How much does an arm's accuracy depend on the learning rate, and 2bit's on its threshold?

What is swept, what is kept of it in sensitivity.csv, its tables and its charts. simulation.py trains.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from arms import BASE, every_arm
from gradwire.report.chart import COLOURS
from multiples import Line, Panel, Scale, draw

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
THRESHOLDS = (0.01, 0.03, 0.1, 0.3, 1.0)
SCALES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
_LIKE_BF16 = (
    "fp16",
    "int8",
    "fp8",
    "fp8:format=e5m2",
)  # of which one is enough here: their errors are far below 1 %
_GREY = "#9aa5b1"


@dataclass(frozen=True)
class Point:
    """One training run. lr_factor: times the training script's learning rate."""

    arm: str
    lr_factor: float
    seed: int
    limit: int
    num_epochs: int

    @classmethod
    def parse(cls, row: dict[str, str]) -> Point:
        return cls(
            row["arm"], float(row["lr_factor"]), int(row["seed"]), int(row["limit"]), int(row["num_epochs"])
        )


Results = dict[Point, float]
"""Accuracies."""


def fixed(threshold: float) -> str:
    return f"2bit:threshold={threshold:g}"


def scaled(scale: float) -> str:
    return f"2bit:threshold=auto,scale={scale:g}"


def lr_arms() -> list[str]:
    return [arm for arm in every_arm() if arm not in _LIKE_BF16]


def plan(arms: Sequence[str], seeds: int, limit: int, num_epochs: int) -> Iterator[Point]:
    """Yields all points, a seed of all before the next, thresholds first: they are few."""
    for seed in range(seeds):
        for arm in (*map(fixed, THRESHOLDS), *map(scaled, SCALES)):
            yield Point(arm, 1.0, seed, limit, num_epochs)
        for factor in sorted(FACTORS, key=lambda factor: abs(factor - 1)):
            for arm in arms:
                yield Point(arm, factor, seed, limit, num_epochs)


def read(file: Path) -> Results:
    if not file.exists():
        return {}
    with file.open(newline="") as lines:
        return {Point.parse(row): float(row["accuracy"]) for row in csv.DictReader(lines)}


def append(file: Path, point: Point, accuracy: float) -> None:
    is_new = not file.exists()
    with file.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, [*(f.name for f in fields(Point)), "accuracy"], lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(point) | {"accuracy": f"{accuracy:.4f}"})


@dataclass(frozen=True)
class Sweep:
    """The means over the seeds, in per cent, of the longest training that was measured."""

    by_factor: dict[str, dict[float, float]]  # of each arm
    by_threshold: dict[float, float]
    by_scale: dict[float, float]
    conditions: str


def summarise(results: Results) -> Sweep:
    size = max((point.limit * point.num_epochs, point.limit, point.num_epochs) for point in results)
    points = {p: a for p, a in results.items() if (p.limit, p.num_epochs) == size[1:]}

    def mean(arm: str, factor: float = 1.0) -> float | None:
        values = [100 * a for p, a in points.items() if (p.arm, p.lr_factor) == (arm, factor)]
        return statistics.fmean(values) if values else None

    swept = {p.arm for p in points} - {*map(fixed, THRESHOLDS), *map(scaled, SCALES)}
    arms = [arm for arm in every_arm() if arm in swept]
    seeds = len({point.seed for point in points})
    return Sweep(
        {arm: _present(FACTORS, lambda factor, arm=arm: mean(arm, factor)) for arm in arms},
        _present(THRESHOLDS, lambda threshold: mean(fixed(threshold))),
        _present(SCALES, lambda scale: mean(scaled(scale))),
        f"LeNet, {size[1]} images, {size[2]} epochs, {seeds} seed{'s' if seeds > 1 else ''}, accuracy in %.",
    )


def _present(xs: Sequence[float], value: Callable[[float], float | None]) -> dict[float, float]:
    return {x: found for x in xs if (found := value(x)) is not None}


def markdown(sweep: Sweep) -> str:
    """Returns the three tables."""
    titles = ["learning rate times", *(f"{factor:g}" for factor in FACTORS), "its best - the best of none"]
    dense = max(sweep.by_factor.get(BASE, {}).values(), default=None)
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for arm, values in sweep.by_factor.items():
        cells = [f"{values[factor]:.1f}" if factor in values else "" for factor in FACTORS]
        cells.append("" if dense is None else f"{max(values.values()) - dense:+.1f}")
        lines.append(f"| `{arm}` | " + " | ".join(cells) + " |")
    tables = ["\n".join(lines)]
    for title, row in (
        ("2bit, fixed threshold", sweep.by_threshold),
        ("2bit, threshold auto, scale", sweep.by_scale),
    ):
        heads = [title, *(f"{x:g}" for x in row)]
        cells = ["accuracy, %", *(f"{accuracy:.1f}" for accuracy in row.values())]
        tables.append(
            "\n".join(
                ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|", f"| {' | '.join(cells)} |"]
            )
        )
    return "\n\n".join([*tables, sweep.conditions])


def figures(sweep: Sweep) -> dict[str, str]:
    """Returns SVGs by file name."""
    dense = sweep.by_factor.get(BASE, {})
    panels = []
    for arm, values in sweep.by_factor.items():
        behind = [_line(BASE, dense, _GREY)] if dense and arm != BASE else []
        panels.append(Panel(arm, (*behind, _line("this arm", values, COLOURS[0]))))
    drawn = {
        "sensitivity_lr.svg": _draw("Learning rate", "its factor", FACTORS, panels),
        "sensitivity_threshold.svg": _draw(
            *("2bit with a fixed threshold", "threshold", THRESHOLDS),
            [Panel("2bit, fixed", (_line("accuracy", sweep.by_threshold, COLOURS[0]),))],
        ),
        "sensitivity_scale.svg": _draw(
            *("2bit with threshold auto", "scale: threshold in means of |x|", SCALES),
            [Panel("2bit, auto", (_line("accuracy", sweep.by_scale, COLOURS[0]),))],
        ),
    }
    return {name: text for name, text in drawn.items() if text}


def _line(name: str, values: dict[float, float], colour: str) -> Line:
    return Line(name, tuple(values), tuple(values.values()), colour)


def _draw(title: str, label: str, xs: Sequence[float], panels: Sequence[Panel]) -> str:
    heights = [y for panel in panels for line in panel.lines for y in line.y]
    if not heights:
        return ""
    pad = max(1.0, 0.08 * (max(heights) - min(heights)))
    return draw(
        title,
        panels,
        Scale(label, min(xs), max(xs), lambda value: f"{value:g}", logarithmic=True, ticks=tuple(xs)),
        Scale("accuracy, %", min(heights) - pad, min(100.0, max(heights) + pad), lambda value: f"{value:g}"),
    )
