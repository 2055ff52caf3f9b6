"""What each candidate may cost: measured points of accuracy (accuracy_cost.csv), and what a budget admits.

accuracy_cost.csv is derived from experiments/codec_accuracy by experiments/controller/accuracy_cost.py, whose folder's
README says how. A row says what all tensors cost that travel by one codec. Of a plan that mixes codecs it is taken that
it costs no more than its lossiest codec for all tensors would; so each tensor's codec has to fit the budget by itself.
"""

from __future__ import annotations

import csv
import importlib.resources
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwire.controller.budget import Budget
from gradwire.controller.plan import CANDIDATES

_BEYOND = 2.0  # times the error of the runs that were measured: what is more wrong, they say nothing of


@dataclass(frozen=True)
class Cost:
    """One row.

    Attributes:
        points_at_most: upper end of what was lost; the worst of the tasks.
        relative_error: of a step's mean in those runs; the worst of the layers.
        needs_momentum: measured where workers send momentum, and without it unknown.
    """

    codec: str
    points_at_most: float
    relative_error: float
    needs_momentum: bool
    seeds: int


def load(file: Path | None = None) -> dict[str, Cost]:
    """Reads the table, by candidate; None: the one that comes with gradwire.

    Raises:
        ValueError: no such table; says what is wrong.
    """
    where = file or importlib.resources.files("gradwire.controller") / "accuracy_cost.csv"
    try:
        rows = list(csv.DictReader(where.read_text(encoding="utf-8").splitlines()))
        costs = [
            Cost(
                row["codec"],
                float(row["points_at_most"]),
                float(row["relative_error"]),
                row["momentum"] == "yes",
                int(row["seeds"]),
            )
            for row in rows
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"controller: {where} is no table of what codecs cost ({type(error).__name__}: {error}): make it with "
            "experiments/controller/accuracy_cost.py"
        ) from None
    return {cost.codec: cost for cost in costs}


def admitted(
    budget: Budget, costs: Mapping[str, Cost], errors: Mapping[str, float], *, sends_momentum: bool
) -> frozenset[str]:
    """Returns which candidates a tensor may have. What is not known is not admitted; "none" always is.

    Args:
        costs: what is known of codecs' accuracy.
        errors: relative errors of the tensor's mean that were measured in this job, by candidate.
    """
    return frozenset(
        candidate
        for candidate in CANDIDATES
        if candidate == "none"
        or (candidate in errors and _fits(budget, costs.get(candidate), errors[candidate], sends_momentum))
    )


def possible(budget: Budget, costs: Mapping[str, Cost], *, sends_momentum: bool) -> tuple[str, ...]:
    """Returns the lossy candidates that a budget may admit, whatever their errors are found to be."""
    return tuple(
        candidate
        for candidate in CANDIDATES[1:]
        if _fits(budget, costs.get(candidate), 0.0, sends_momentum=sends_momentum)
    )


def _fits(budget: Budget, cost: Cost | None, error: float, sends_momentum: bool) -> bool:
    if budget.kind == "error":
        return error <= budget.limit
    if cost is None or (cost.needs_momentum and not sends_momentum):
        return False
    return cost.points_at_most <= budget.limit and error <= _BEYOND * cost.relative_error


def left_out(
    budget: Budget, costs: Mapping[str, Cost], errors: Sequence[Mapping[str, float]], *, sends_momentum: bool
) -> str:
    """Says which candidates admitted() keeps from tensors, and why: "int8 (0.45 points), 2bit (1.11 points;
    needs momentum_correction)"; empty: none.

    Args:
        errors: as admitted() is given them, of each tensor whose codec is free.
    """
    if not errors:
        return ""
    parts = []
    may_fit = possible(budget, costs, sends_momentum=sends_momentum)
    for candidate in CANDIDATES[1:]:
        if candidate not in may_fit:
            why = _why_not(budget, costs.get(candidate), sends_momentum=sends_momentum)
            parts.append(f"{candidate} ({why})")
            continue
        measured = [own[candidate] for own in errors if candidate in own]
        out = [e for e in measured if not _fits(budget, costs.get(candidate), e, sends_momentum)]
        if not out:
            continue
        for_some = f" for {len(out)} of {len(errors)} tensors" if len(out) < len(errors) else ""
        if budget.kind == "error":
            why = f"up to {100 * max(out):.3g}% error"
        else:
            why = "more wrong here than where its accuracy was measured"
        parts.append(f"{candidate}{for_some} ({why})")
    return ", ".join(parts)


def _why_not(budget: Budget, cost: Cost | None, *, sends_momentum: bool) -> str:
    """Says why a candidate is not possible()."""
    if cost is None:
        return "its accuracy was not measured"
    why = [f"{cost.points_at_most:g} points"] if cost.points_at_most > budget.limit else []
    if cost.needs_momentum and not sends_momentum:
        why.append("needs momentum_correction")
    return "; ".join(why)


def begins_with(budget: Budget, costs: Mapping[str, Cost]) -> str:
    """Returns what the first steps travel by, while nothing is measured: the lossiest candidate that fits by its known
    cost and keeps that without momentum correction. Those that do not are no beginning for a training.
    """
    known = ((name, cost) for name in CANDIDATES if (cost := costs.get(name)) is not None)
    fits = [name for name, cost in known if _fits(budget, cost, cost.relative_error, sends_momentum=False)]
    return fits[-1] if fits else "none"
