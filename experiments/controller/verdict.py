"""What a row of the grid says: compression="auto" against every fixed setting, in the same trainings."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gradwire.ab.experiment import Run
from gradwire.ab.summary import Outcome, seconds_to
from gradwire.controller import Budget, accuracy
from gradwire.report.paired_statistics import Interval, paired_ratio

BASELINES = ("none", "fp16")
BEST_FIXED, BASELINE = (
    1.1,
    1.03,
)  # bounds: times the best fixed setting's time to the target, the better baseline's


@dataclass(frozen=True)
class Verdict:
    """Of one row. Ratios are paired by seed; None: somebody did not get to the target.

    Attributes:
        best_fixed: the fixed setting that is first at the target.
        to_target: auto's time to the target over that one's.
        best_admitted: the first of those that the budget admits.
        to_target_admitted: auto's time to the target over that one's.
        baseline: the faster of none and fp16, over the whole training.
        training: auto's time for the whole training over that one's.
        points_lost: accuracy below none's at the end, in points; of tasks that have an accuracy.
    """

    best_fixed: str | None
    to_target: Interval | None
    best_admitted: str | None
    to_target_admitted: Interval | None
    baseline: str
    training: Interval
    points_lost: float | None

    def record(self) -> dict[str, Any]:
        return asdict(self)


def of(outcome: Outcome, auto: str, admitted: Collection[str]) -> Verdict:
    """Draws the conclusions of a row in which `auto` is one arm, and fixed settings are the others.

    Args:
        admitted: fixed settings that are within auto's budget.
    """
    runs = {arm.arm: arm.runs for arm in outcome.arms}
    own = runs[auto]
    fixed = [name for name in runs if name != auto]
    best, to_target = _first(outcome, fixed, own)
    best_admitted, to_target_admitted = _first(outcome, [name for name in fixed if name in admitted], own)
    baseline = min((name for name in BASELINES if name in runs), key=lambda name: _mean_seconds(runs[name]))
    training = paired_ratio([run.seconds()[-1] for run in own], [run.seconds()[-1] for run in runs[baseline]])
    lost = None
    if outcome.metric == "accuracy":
        finals = {arm.arm: arm.final for arm in outcome.arms}
        lost = 100 * (finals["none"] - finals[auto])
    return Verdict(best, to_target, best_admitted, to_target_admitted, baseline, training, lost)


def admitted_by(budget: Budget) -> frozenset[str]:
    """Returns the fixed settings within a budget, by what is known of their accuracy; the scripts train with SGD."""
    costs = accuracy.load("sgd")
    errors = {name: cost.relative_error for name, cost in costs.items()}
    return accuracy.admitted(budget, costs, errors)


def _first(
    outcome: Outcome, names: Collection[str], own: Sequence[Run]
) -> tuple[str | None, Interval | None]:
    """Returns which of these settings is first at the target, and auto's time to it over that one's."""
    there = [arm for arm in outcome.arms if arm.arm in names and arm.seconds_to_target is not None]
    best = min(there, key=lambda arm: arm.seconds_to_target or 0.0, default=None)
    return (None, None) if best is None else (best.arm, _ratio(own, best.runs, outcome.target))


def _mean_seconds(runs: Sequence[Run]) -> float:
    return statistics.fmean(run.seconds()[-1] for run in runs)


def _ratio(runs: Sequence[Run], base: Sequence[Run], target: float) -> Interval | None:
    times = [(seconds_to(a, target), seconds_to(b, target)) for a, b in zip(runs, base, strict=True)]
    both = [(a, b) for a, b in times if a is not None and b is not None]
    return paired_ratio(*zip(*both, strict=True)) if len(both) == len(times) else None


def claims(record: Mapping[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Returns (claim, bound, measured, holds) of a row's record."""
    verdict, budget = record["verdict_of_auto"], record["budget_points"]
    training = verdict["training"]
    found = [_to_target(verdict["best_fixed"], "the best fixed setting", verdict["to_target"])]
    if (best := verdict["best_admitted"]) != verdict["best_fixed"]:
        found.append(_to_target(best, "the best that the budget admits", verdict["to_target_admitted"]))
    found.append(
        (
            f"training time over that of {verdict['baseline']}, the better of none and fp16",
            f"<= {BASELINE}",
            _with_interval(training),
            training["mean"] <= BASELINE,
        )
    )
    if verdict["points_lost"] is not None and budget is not None:
        lost = verdict["points_lost"]
        found.append(("points of accuracy lost", f"<= {budget:g}", f"{lost:+.2f}", lost <= budget))
    return found


def _to_target(best: str, what: str, ratio: Mapping[str, Any] | None) -> tuple[str, str, str, bool]:
    return (
        f"time to target over that of {best}, {what}",
        f"<= {BEST_FIXED}",
        "not reached" if ratio is None else _with_interval(ratio),
        ratio is not None and ratio["mean"] <= BEST_FIXED,
    )


def _with_interval(ratio: Mapping[str, Any]) -> str:
    text = f"{ratio['mean']:.2f}"
    return text if ratio["low"] is None else f"{text} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """Returns the tables: claims, then every arm's time to the target."""
    lines = ["| row | claim | bound | measured | holds |", "|---|---|---|---|---|"]
    for record in records:
        for claim, bound, measured, holds in claims(record):
            lines.append(
                f"| {record['row']} | {claim} | {bound} | {measured} | {'yes' if holds else '**no**'} |"
            )
    arms = list(dict.fromkeys(arm["arm"] for record in records for arm in record["arms"]))
    lines += ["", "| seconds to target | " + " | ".join(f"`{arm}`" for arm in arms) + " |"]
    lines.append("|---" * (len(arms) + 1) + "|")
    for record in records:
        times = {arm["arm"]: arm["seconds_to_target"] for arm in record["arms"]}
        cells = ["-" if times.get(arm) is None else f"{times[arm]:.1f}" for arm in arms]
        lines.append(f"| {record['row']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
