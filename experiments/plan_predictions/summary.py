"""What the cells say of `gradwire plan`: errors, intervals, and by what factors its costs would have to grow.

Threading: pure functions.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from gradwire.settings.units import format_duration

STEADY = 0.10  # a measured spread above it is shown, and not judged
GOAL_ERROR, GOAL_WITHIN = 0.05, 0.90
GRID = (1.0, 1.25, 1.5, 2.0, 3.0)  # factors of costs that --fit tries
RATES = (1.0, 0.975, 0.95, 0.925, 0.9)  # and of what a link carries


@dataclass(frozen=True)
class Cell:
    """One setting: what was predicted for it and what was measured. Seconds of a step.

    fast, slow: 10th and 90th percentile of the measured steps. load: of the machine, before and after.
    """

    model: str
    bandwidth: str
    codec: str
    placement: str
    partition_bytes: int
    credit_bytes: int
    predicted: float
    low: float
    high: float
    steps: int
    measured: float
    fast: float
    slow: float
    load_before: float
    load_after: float

    @property
    def name(self) -> str:
        return f"{self.model}-{self.bandwidth}-{self.codec}-{self.placement}"

    @property
    def spread(self) -> float:
        return (self.slow - self.fast) / self.measured

    @property
    def error(self) -> float:
        """Share of the measured step by which the prediction is too long; below 0: it was optimistic."""
        return self.predicted / self.measured - 1

    @property
    def within(self) -> bool:
        return self.low <= self.measured <= self.high

    @property
    def is_steady(self) -> bool:
        return self.spread <= STEADY

    def row(self) -> dict[str, str]:
        """Returns a line of results.csv."""
        judged = {"spread": self.spread, "error": self.error}
        figures = {name: f"{value:.6g}" for name, value in judged.items()}
        known = {name: f"{x:.6g}" if isinstance(x, float) else str(x) for name, x in asdict(self).items()}
        return known | figures | {"within": "yes" if self.within else "no"}

    @classmethod
    def of_row(cls, row: Mapping[str, str]) -> Cell:
        """Reads what row() wrote."""
        kinds: dict[str, Callable[[str], object]] = {"str": str, "int": int, "float": float}
        return cls(**{x.name: kinds[str(x.type)](row[x.name]) for x in fields(cls)})  # type: ignore[arg-type]


COLUMNS = (*(x.name for x in fields(Cell)), "spread", "error", "within")


def median_error(cells: Sequence[Cell]) -> float:
    return statistics.median(abs(cell.error) for cell in cells)


def share_within(cells: Sequence[Cell]) -> float:
    return sum(cell.within for cell in cells) / len(cells)


def markdown(cells: Sequence[Cell]) -> str:
    """Returns README.md's tables: the verdict over the steady cells, by rate and codec, and all cells."""
    steady = [cell for cell in cells if cell.is_steady]
    lines = [
        f"{len(cells)} cells measured, {len(steady)} of them steady (spread of at most {STEADY:.0%}); the others are "
        "shown and not judged.",
        "",
        "| steady cells | cells | median error | median of signed errors | within their interval |",
        "|---|---|---|---|---|",
    ]
    groups = {"all": steady}
    for field in ("bandwidth", "codec", "model", "placement"):
        for value in dict.fromkeys(str(getattr(cell, field)) for cell in cells):
            groups[value] = [cell for cell in steady if getattr(cell, field) == value]
    for name, group in groups.items():
        lines.append(f"| {name} | {len(group)} | {' | '.join(_judged(group))} |")
    lines += ["", *_goals(steady), ""]
    lines += [
        "| cell | predicted | interval | measured | 10-90 % | error | within |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        verdict = ("yes" if cell.within else "**no**") if cell.is_steady else "not judged"
        interval, spread = (
            f"{format_duration(low)} to {format_duration(high)}"
            for low, high in ((cell.low, cell.high), (cell.fast, cell.slow))
        )
        figures = [format_duration(cell.predicted), interval, format_duration(cell.measured), spread]
        lines.append(f"| {cell.name} | {' | '.join(figures)} | {cell.error:+.1%} | {verdict} |")
    return "\n".join(lines)


def _judged(cells: Sequence[Cell]) -> list[str]:
    if not cells:
        return ["", "", ""]
    signed = statistics.median(cell.error for cell in cells)
    return [f"{median_error(cells):.1%}", f"{signed:+.1%}", f"{share_within(cells):.0%}"]


def _goals(steady: Sequence[Cell]) -> list[str]:
    if not steady:
        return ["Goals: nothing to judge."]
    error, within = median_error(steady), share_within(steady)
    met = {True: "met", False: "**missed**"}
    return [
        f"Goals: a median error under {GOAL_ERROR:.0%} is {met[error < GOAL_ERROR]} ({error:.1%}); at least "
        f"{GOAL_WITHIN:.0%} of the cells within their interval is {met[within >= GOAL_WITHIN]} ({within:.0%})."
    ]


@dataclass(frozen=True)
class Factors:
    """What --fit tries: times the calibration's costs of codecs and messages, times what a link carries."""

    costs: float = 1.0
    rate: float = 1.0


Predict = Callable[[Cell, Factors], float]


@dataclass(frozen=True)
class Fold:
    """One model left out: the factors that fit the others best, and how well these predict it."""

    left_out: str
    factors: Factors
    cells: int
    before: float  # median error of the cells left out, with factors of 1
    after: float  # with the fitted ones


def fitted(cells: Sequence[Cell], predict: Predict) -> Factors:
    """Returns the factors of the grid with the least median error; of equal ones those nearest to 1."""
    tried = [Factors(costs, rate) for costs in GRID for rate in RATES]
    return min(
        tried,
        key=lambda factors: (round(error_with(cells, factors, predict), 6), factors.costs - factors.rate),
    )


def error_with(cells: Sequence[Cell], factors: Factors, predict: Predict) -> float:
    return statistics.median(abs(predict(cell, factors) / cell.measured - 1) for cell in cells)


def folds(cells: Sequence[Cell], predict: Predict) -> list[Fold]:
    """Leaves one model out after the other. Cells that are not steady are neither fitted nor judged."""
    steady = [cell for cell in cells if cell.is_steady]
    found = []
    for model in dict.fromkeys(cell.model for cell in steady):
        judged = [cell for cell in steady if cell.model == model]
        others = [cell for cell in steady if cell.model != model]
        if not others:
            continue
        factors = fitted(others, predict)
        before, after = (error_with(judged, each, predict) for each in (Factors(), factors))
        found.append(Fold(model, factors, len(judged), before, after))
    return found


def fit_table(found: Sequence[Fold]) -> str:
    """Says for each model how factors that were fitted on the others predict it."""
    if not found:
        return (
            "Nothing to fit: expected steady cells of two models or more, one to fit on and one to judge on."
        )
    lines = [
        "| judged on | cells | costs of codecs and messages | rate of links | median error, factors of 1 | fitted |",
        "|---|---|---|---|---|---|",
    ]
    for fold in found:
        factors = f"x {fold.factors.costs:g} | x {fold.factors.rate:g}"
        lines.append(f"| {fold.left_out} | {fold.cells} | {factors} | {fold.before:.1%} | {fold.after:.1%} |")
    better = sum(fold.after < fold.before for fold in found)
    lines += [
        "",
        f"Factors fitted on the other models predict {better} of {len(found)} models better than 1 does.",
    ]
    return "\n".join(lines)
