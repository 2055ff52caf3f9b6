"""Derives what each candidate of compression="auto" may cost in accuracy from the runs of ../codec_accuracy.

    python experiments/controller/accuracy_cost.py [--runs results.csv] [--errors relative_error.csv] [--out FILE]

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
RUNS = HERE.parent / "codec_accuracy"
TABLE = HERE.parents[1] / "python" / "gradwire" / "controller" / "accuracy_cost.csv"
FIELDS = ("codec", "points", "points_at_most", "relative_error", "momentum", "tasks", "seeds")
BASE = "none"

SPREAD = (
    0.2  # points, of a difference between two runs of one seed, where too few seeds say: ../auto_threshold
)
ONE_SIDED = 0.9  # of Student's two-sided interval, whose upper end is then passed by 1 in 20
LOSSLESS = 0.01  # relative error of a step below which a codec is taken to cost nothing
MOMENTUM = ("2bit",)  # codecs whose runs send momentum, as the training scripts do

Losses = dict[str, dict[str, list[float]]]  # by task and arm: points below `none`, a number a seed


@dataclass(frozen=True)
class Row:
    codec: str
    points: float
    points_at_most: float
    relative_error: float
    momentum: bool
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


def spread(task: Mapping[str, Sequence[float]]) -> tuple[float, int]:
    """Returns the deviation of one difference, pooled over arms with several seeds, and its degrees of freedom; SPREAD
    and 0 where no arm has any.
    """
    squares, degrees = 0.0, 0
    for values in task.values():
        if len(values) > 1:
            squares += (len(values) - 1) * statistics.variance(values)
            degrees += len(values) - 1
    return (math.sqrt(squares / degrees), degrees) if degrees else (SPREAD, 0)


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
    """Returns a row for each candidate that was measured on some task: the worst task's."""
    worst: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for task in runs.values():
        deviation, degrees = spread({arm: values for arm, values in task.items() if arm in CANDIDATES})
        quantile = t_quantile(degrees, ONE_SIDED) if degrees else statistics.NormalDist().inv_cdf(0.95)
        for family in (False, True):
            arms = [
                arm for arm in CANDIDATES if arm in task and arm in wrong and _sends_momentum(arm) == family
            ]
            arms.sort(key=lambda arm: wrong[arm])
            means = [statistics.fmean(task[arm]) for arm in arms]
            for arm, mean in zip(arms, isotonic(means, [len(task[arm]) for arm in arms]), strict=True):
                seeds = len(task[arm])
                worst[arm].append((mean, max(0.0, mean) + quantile * deviation / math.sqrt(seeds), seeds))
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
                    _sends_momentum(arm),
                    len(worst[arm]),
                    min(seeds for _, _, seeds in worst[arm]),
                )
            )
    return rows


def _sends_momentum(arm: str) -> bool:
    return arm.partition(":")[0] in MOMENTUM


def write(rows: Sequence[Row], file: Path) -> None:
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(FIELDS)
        for row in rows:
            figures = (f"{row.points:.2f}", f"{row.points_at_most:.2f}", f"{row.relative_error:.4g}")
            writer.writerow([row.codec, *figures, "yes" if row.momentum else "no", row.tasks, row.seeds])


def _read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=Path, default=RUNS / "simulated.csv", help="of codec_accuracy/run.py --simulate"
    )
    parser.add_argument(
        "--errors",
        type=Path,
        default=RUNS / "relative_error.csv",
        help="of codec_accuracy/run.py --relative-error",
    )
    parser.add_argument(
        "--out", type=Path, default=TABLE, help="where the table goes (default: the package's)"
    )
    given = parser.parse_args()
    rows = table(losses(_read(given.runs)), errors(_read(given.errors)))
    write(rows, given.out)
    for row in rows:
        print(f"{row.codec}: {row.points:+.2f} points, at most {row.points_at_most:.2f}; {row.seeds} seeds")


if __name__ == "__main__":
    main()
