"""Derives what each candidate of compression="auto" may cost in accuracy from the runs of ../codec_accuracy (SGD) and
../adamw (AdamW, Muon).

    python experiments/controller/accuracy_cost.py [--out FILE]

Writes python/gradwire/controller/accuracy_cost.csv; README.md says how and why. Measures nothing.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwire.controller.plan import CANDIDATES
from gradwire.report.paired_statistics import t_quantile

HERE = Path(__file__).resolve().parent
SGD, ADAM = HERE.parent / "codec_accuracy", HERE.parent / "adamw"
TABLE = HERE.parents[1] / "python" / "gradwire" / "controller" / "accuracy_cost.csv"
FIELDS = ("optimizer", "codec", "points", "points_at_most", "relative_error", "tasks", "seeds")
BASE = "none"

ENOUGH = 5  # seeds: with fewer an arm of a task does not count
ONE_SIDED = 0.9  # of Student's two-sided interval, whose upper end is then passed by 1 in 20
LOSSLESS = 0.01  # relative error of a step below which a codec is taken to cost nothing

Losses = dict[str, dict[str, list[float]]]  # by task and arm: points below `none`, a number a seed


@dataclass(frozen=True)
class Row:
    codec: str
    points: float
    points_at_most: float
    relative_error: float
    tasks: int
    seeds: int


def losses(rows: Sequence[Mapping[str, str]]) -> Losses:
    """Pairs runs by task and seed. Tasks whose score is no accuracy have no points, and are passed over."""
    scores = {
        (row["task"], row["arm"], row["seed"]): float(row["score"])
        for row in rows
        if row["metric"] == "accuracy"
    }
    found: Losses = defaultdict(lambda: defaultdict(list))
    for (task, arm, seed), score in scores.items():
        if arm != BASE and (task, BASE, seed) in scores:
            found[task][arm].append(100 * (scores[task, BASE, seed] - score))
    return found


def errors(rows: Sequence[Mapping[str, str]]) -> dict[str, float]:
    """Returns each arm's error: the worst layer's median over the later half of the steps."""
    by_layer: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_layer[row["arm"]][row["layer"]].append((int(row["step"]), float(row["relative_error"])))
    return {arm: max(_late_median(points) for points in layers.values()) for arm, layers in by_layer.items()}


def _late_median(points: Sequence[tuple[int, float]]) -> float:
    last = max(step for step, _ in points)
    return statistics.median(error for step, error in points if step > last / 2)


def margin(values: Sequence[float]) -> float:
    """Returns what one in 20 means of so many differences exceeds: Student's quantile times the mean's deviation."""
    return t_quantile(len(values) - 1, ONE_SIDED) * statistics.stdev(values) / math.sqrt(len(values))


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Returns the non-decreasing sequence that is nearest in weighted squares: neighbours out of order are pooled.

    Source: Barlow, Bartholomew, Bremner and Brunk, Statistical Inference under Order Restrictions, 1972, section 1.2.
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight, count
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, wa, na), (b, wb, nb) = blocks[-2:]
            blocks[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return [mean for mean, _, count in blocks for _ in range(count)]


def table(runs: Losses, wrong: Mapping[str, float]) -> list[Row]:
    """Returns a row for each candidate that was measured on some task with enough seeds: the worst task's."""
    worst: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for task in runs.values():
        known = [arm for arm in CANDIDATES if len(task.get(arm, ())) >= ENOUGH and arm in wrong]
        arms = sorted(known, key=lambda arm: wrong[arm])
        means = isotonic([statistics.fmean(task[arm]) for arm in arms], [len(task[arm]) for arm in arms])
        for arm, mean in zip(arms, means, strict=True):
            worst[arm].append((mean, max(0.0, mean) + margin(task[arm]), len(task[arm])))
    rows = []
    for arm in CANDIDATES:
        if arm in worst:
            costs_nothing = wrong[arm] < LOSSLESS
            rows.append(
                Row(
                    arm,
                    max(mean for mean, _, _ in worst[arm]),
                    0.0 if costs_nothing else max(most for _, most, _ in worst[arm]),
                    wrong[arm],
                    len(worst[arm]),
                    min(seeds for _, _, seeds in worst[arm]),
                )
            )
    return rows


def measured() -> dict[str, list[Row]]:
    """Returns the table's rows by optimizer, from the results of both pages."""
    of_adam, of_muon = [], []
    for row in _read(ADAM / "results.csv"):
        codec, is_muon, _ = row["arm"].partition(";optimizer=muon;")
        own = of_muon if is_muon else of_adam
        own.append({**row, "arm": codec, "metric": "accuracy", "score": row["accuracy"]})
    wrong: dict[str, float] = {}
    for row in _read(ADAM / "mean_error.csv"):
        wrong[row["codec"]] = max(wrong.get(row["codec"], 0.0), float(row["step"]))
    return {
        "sgd": table(losses(_read(SGD / "simulated.csv")), errors(_read(SGD / "relative_error.csv"))),
        "adam": table(losses(of_adam), wrong),
        "muon": table(losses(of_muon), wrong),
    }


def write(rows: Mapping[str, Sequence[Row]], file: Path) -> None:
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(FIELDS)
        for optimizer, row in ((optimizer, row) for optimizer, own in rows.items() for row in own):
            figures = (f"{row.points:.2f}", f"{row.points_at_most:.2f}", f"{row.relative_error:.4g}")
            writer.writerow([optimizer, row.codec, *figures, row.tasks, row.seeds])


def _read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=TABLE, help="where the table goes (default: the package's)"
    )
    given = parser.parse_args()
    found = measured()
    write(found, given.out)
    for optimizer, rows in found.items():
        for row in rows:
            most = f"at most {row.points_at_most:.2f}"
            print(
                f"{optimizer}, {row.codec}: {row.points:+.2f} points, {most}; {row.tasks} tasks, {row.seeds} seeds"
            )


if __name__ == "__main__":
    main()
