"""What each candidate may cost: measured points of accuracy (accuracy_cost.csv), and what a budget admits.

accuracy_cost.csv is derived from experiments/codec_accuracy (SGD) and experiments/adamw (AdamW, Muon) by
experiments/controller/accuracy_cost.py, whose folder's README says how. A row says what all tensors cost that travel by
one codec and are stepped on by one optimizer. Of a plan that mixes codecs it is taken that it costs no more than its
lossiest codec for all tensors would; so each tensor's codec has to fit the budget by itself.
"""

from __future__ import annotations

import csv
import importlib.resources
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from gradwire.controller.budget import Budget
from gradwire.controller.plan import CANDIDATES

Optimizer = Literal["sgd", "adam", "muon"]
"""Which optimizers' trainings were measured; those that divide as Adam does, as AdamW, count as it."""

_OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
_BEYOND = 2.0  # times the error of the runs that were measured: what is more wrong, they say nothing of


@dataclass(frozen=True)
class Cost:
    """One row.

    Attributes:
        points_at_most: upper end of what was lost; the worst of the tasks.
        relative_error: of a step's mean in those runs; the worst of the layers.
    """

    points_at_most: float
    relative_error: float


def load(optimizer: Optimizer | None, file: Path | None = None) -> dict[str, Cost]:
    """Reads the table, by candidate.

    Args:
        optimizer: which steps on the means. None: another, or one that is not known; each candidate then costs what it
            costs where it costs most, and one that was not measured with all of them is not there.
        file: None: the table that comes with gradwire.

    Raises:
        ValueError: no such table; says what is wrong.
    """
    where = file or importlib.resources.files("gradwire.controller") / "accuracy_cost.csv"
    try:
        found: dict[str, dict[str, Cost]] = {known: {} for known in _OPTIMIZERS}
        for row in csv.DictReader(where.read_text(encoding="utf-8").splitlines()):
            cost = Cost(float(row["points_at_most"]), float(row["relative_error"]))
            found[row["optimizer"]][row["codec"]] = cost
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"controller: {where} is no table of what codecs cost ({type(error).__name__}: {error}): make it with "
            "experiments/controller/accuracy_cost.py"
        ) from None
    if optimizer is not None:
        return found[optimizer]
    measured = [name for name in CANDIDATES if all(name in costs for costs in found.values())]
    return {name: _worst([costs[name] for costs in found.values()]) for name in measured}


def _worst(costs: Sequence[Cost]) -> Cost:
    """Of one candidate, with several optimizers."""
    return Cost(
        max(cost.points_at_most for cost in costs),
        min(cost.relative_error for cost in costs),
    )


def admitted(budget: Budget, costs: Mapping[str, Cost], errors: Mapping[str, float]) -> frozenset[str]:
    """Returns which candidates a tensor may have. What is not known is not admitted; "none" always is.

    Args:
        costs: what is known of codecs' accuracy.
        errors: relative errors of the tensor's mean that were measured in this job, by candidate.
    """
    return frozenset(
        candidate
        for candidate in CANDIDATES
        if candidate == "none"
        or (candidate in errors and _fits(budget, costs.get(candidate), errors[candidate]))
    )


def possible(budget: Budget, costs: Mapping[str, Cost]) -> tuple[str, ...]:
    """Returns the lossy candidates that a budget may admit, whatever their errors are found to be."""
    return tuple(candidate for candidate in CANDIDATES[1:] if _fits(budget, costs.get(candidate), 0.0))


def _fits(budget: Budget, cost: Cost | None, error: float) -> bool:
    if budget.kind == "error":
        return error <= budget.limit
    return cost is not None and cost.points_at_most <= budget.limit and error <= _BEYOND * cost.relative_error


def left_out(budget: Budget, costs: Mapping[str, Cost], errors: Sequence[Mapping[str, float]]) -> str:
    """Says which candidates admitted() keeps from tensors, and why: "nf4 (0.45 points), nf2 (1.1 points)"; empty: none.

    Args:
        errors: as admitted() is given them, of each tensor whose codec is free.
    """
    if not errors:
        return ""
    parts = []
    may_fit = possible(budget, costs)
    for candidate in CANDIDATES[1:]:
        if candidate not in may_fit:
            cost = costs.get(candidate)
            why = "its accuracy was not measured" if cost is None else f"{cost.points_at_most:g} points"
            parts.append(f"{candidate} ({why})")
            continue
        measured = [own[candidate] for own in errors if candidate in own]
        out = [e for e in measured if not _fits(budget, costs.get(candidate), e)]
        if not out:
            continue
        for_some = f" for {len(out)} of {len(errors)} tensors" if len(out) < len(errors) else ""
        if budget.kind == "error":
            why = f"up to {100 * max(out):.3g}% error"
        else:
            why = "more wrong here than where its accuracy was measured"
        parts.append(f"{candidate}{for_some} ({why})")
    return ", ".join(parts)


def begins_with(budget: Budget, costs: Mapping[str, Cost]) -> str:
    """Returns what the first steps travel by, while nothing is measured: the lossiest candidate that fits by its known
    cost.
    """
    known = ((name, cost) for name in CANDIDATES if (cost := costs.get(name)) is not None)
    fits = [name for name, cost in known if _fits(budget, cost, cost.relative_error)]
    return fits[-1] if fits else "none"
