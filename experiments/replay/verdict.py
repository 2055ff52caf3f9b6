"""What the records say of the claims: goals met or missed, and how far the simulator was from what was measured.

Only what is as it is by default counts; controls say nothing of a claim.

Threading: pure functions.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from replay import rows

Records = Sequence[Mapping[str, Any]]
Predictions = Mapping[tuple[str, bool], float]

_WITHIN = 0.05  # of what the simulator said
# Least efficiencies with overlap_step. ResNet-50's are those of VGG16, but for one server, where both are to reach the
# same share of their bounds (56 of 58.8).
GOALS = {
    "gradwire-none-8w2s-10gbit": 0.96,
    "gradwire-none-8w4s-10gbit": 0.98,
    "gradwire-none-8w8s-10gbit": 0.99,
    "gradwire-none-peers8-10gbit": 0.99,
    "gradwire-none-8w1s-10gbit": 0.56,
    "gradwire-2bit-8w1s-10gbit": 0.96,
    "gradwire-2bit-peers8-1gbit": 0.95,
    "gradwire-none-8w2s-10gbit-resnet50": 0.96,
    "gradwire-none-8w4s-10gbit-resnet50": 0.98,
    "gradwire-none-peers8-10gbit-resnet50": 0.99,
    "gradwire-none-8w1s-10gbit-resnet50": 0.506,
    "gradwire-2bit-8w1s-10gbit-resnet50": 0.96,
}


@dataclass(frozen=True)
class Claim:
    """figure: what was measured, None where there is none yet. margin: by how much it was met; below 0: missed."""

    text: str
    goal: str
    figure: str | None
    margin: float | None
    beside: str = ""  # MXNet, on the same cluster of the model

    @property
    def verdict(self) -> str:
        if self.margin is None:
            return "not measured"
        return f"{'met' if self.margin >= 0 else '**missed**'} by {100 * abs(self.margin):.1f} points"


def error(record: Mapping[str, Any], predictions: Predictions) -> float | None:
    """Returns by what share of the prediction the measured efficiency is above it; None: one of the two is missing."""
    predicted = predictions.get((record["row"], record["overlap_step"]))
    if predicted is None or record["efficiency"] is None or record["changes"]:
        return None
    return float(record["efficiency"] / predicted - 1)


def errors(records: Records, predictions: Predictions) -> list[tuple[float, Mapping[str, Any]]]:
    """Returns the errors of all records that have one, the worst first."""
    found = [(off, record) for record in records if (off := error(record, predictions)) is not None]
    return sorted(found, key=lambda one: -abs(one[0]))


def accuracy(records: Records, predictions: Predictions) -> str:
    """Says how far the simulator was off, for each model's rows of gradwire and of the peers: in the mean, and at worst
    where."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        whose = "gradwire's" if record["system"] == "gradwire" else "the peers'"
        groups.setdefault(f"{whose} rows of {rows.parse(record['row']).model}", []).append(record)
    lines = []
    for whose, of in groups.items():
        if found := errors(of, predictions):
            worst, where = found[0]
            mean = statistics.fmean(abs(off) for off, _ in found)
            mode = "overlap" if where["overlap_step"] else "drain"
            lines.append(
                f"Simulator against {len(found)} replayed points of {whose}: mean error {100 * mean:.1f} %, worst "
                f"{100 * worst:+.1f} % ({where['row']}, {mode})."
            )
    return "\n".join(lines) or "No replayed point has a prediction beside it."


def claims(records: Records, predictions: Predictions) -> list[Claim]:
    measured = {
        (record["row"], record["overlap_step"]): record["efficiency"]
        for record in records
        if not record["changes"]
    }
    found = []
    for name, goal in GOALS.items():
        figure, row = measured.get((name, True)), rows.parse(name)
        peer = measured.get((name.replace(f"gradwire-{row.codec}", "mxnet-none", 1), True))
        found.append(
            Claim(
                f"{name}, overlap",
                f">= {100 * goal:.4g} %",
                None if figure is None else f"{100 * figure:.1f} %",
                None if figure is None else figure - goal,
                "" if peer is None else f"{100 * peer:.1f} %",
            )
        )
    ours = [record for record in records if record["system"] == "gradwire"]
    worst = abs(off[0][0]) if (off := errors(ours, predictions)) else None
    text = "simulator's worst error, gradwire's rows"
    figure = None if worst is None else f"{100 * worst:.1f} %"
    margin = None if worst is None else _WITHIN - worst
    return [*found, Claim(text, f"<= {100 * _WITHIN:g} %", figure, margin)]


def markdown(records: Records, predictions: Predictions) -> str:
    """Returns the line of errors and the table of claims."""
    lines = [
        accuracy(records, predictions),
        "",
        "| claim | goal | measured | verdict | MXNet there |",
        "|---" * 5 + "|",
    ]
    lines += [
        f"| {claim.text} | {claim.goal} | {claim.figure or '-'} | {claim.verdict} | {claim.beside or '-'} |"
        for claim in claims(records, predictions)
    ]
    return "\n".join(lines)
