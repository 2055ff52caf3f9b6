"""Which plan: of those that the budget admits, the one with the least predicted step. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradwire.controller.plan import BASELINES, CANDIDATES, Plan, Tensor, groups, lossiness
from gradwire.settings.units import format_duration

WORTH = 0.01  # of a step: what more loss must gain
HYSTERESIS = 0.05  # of a step: what another plan than the one in force must gain
_LEFT_OUT = (
    0.0,
    0.01,
    0.05,
    0.2,
    0.5,
)  # shares of the elements, in the smallest tensors, that stay uncompressed


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes:
        predicted: seconds of a step, of the plan and of the baselines that the budget admits, by name.
        reason: for people.
    """

    plan: Plan
    seconds: float
    predicted: dict[str, float]
    reason: str


def choose(
    tensors: Sequence[Tensor],
    admitted: Sequence[frozenset[str]],
    step_seconds: Callable[[Plan], float],
    in_force: Plan | None = None,
) -> Choice:
    """Takes the plan with the least step; of those within 1 % of it, the one that leaves out least.

    Args:
        admitted: which candidates each tensor may have, by index; "none" at least.
        step_seconds: predicts a plan's step.
        in_force: stays where no other plan gains 5 %, or leaves out less in the same time, if the budget still admits
            it.
    """
    times = {plan: step_seconds(plan) for plan in plans(tensors, admitted)}
    least = min(times.values())
    near = [plan for plan, seconds in times.items() if seconds <= least * (1 + WORTH)]
    best = min(near, key=lambda plan: (_loss(plan, tensors), times[plan]))
    stays = False
    if in_force is not None and _is_admitted(in_force, tensors, admitted):
        times.setdefault(in_force, step_seconds(in_force))
        gains = times[best] <= times[in_force] * (1 - HYSTERESIS)
        costs_nothing = _loss(best, tensors) < _loss(in_force, tensors) and times[best] <= times[in_force]
        stays = best != in_force and not gains and not costs_nothing
        best = in_force if stays else best
    predicted = {
        name: times[plan]
        for name in BASELINES
        if (plan := Plan.uniform(name, tensors)) in times and _is_admitted(plan, tensors, admitted)
    }
    return Choice(best, times[best], predicted, _reason(best, times[best], predicted, tensors, stays=stays))


def plans(tensors: Sequence[Tensor], admitted: Sequence[frozenset[str]]) -> list[Plan]:
    """Returns what is compared: each candidate for all tensors that may have it, and for all but the smallest. A tensor
    that may not have it gets the next one that leaves out less.
    """
    found: dict[Plan, None] = {}
    for candidate in CANDIDATES:
        for least in _least_sizes(tensors):
            found[_plan(tensors, admitted, candidate, least)] = None
    return list(found)


def _least_sizes(tensors: Sequence[Tensor]) -> list[int]:
    """Sizes in elements below which tensors stay uncompressed."""
    sizes = sorted(_size(tensors, group) for group in groups(tensors))
    total, below, least = sum(sizes), 0, [0]
    for size in sizes:
        if any(below <= share * total < below + size for share in _LEFT_OUT) and size not in least:
            least.append(size)
        below += size
    return least


def _size(tensors: Sequence[Tensor], group: Sequence[int]) -> int:
    return sum(tensors[index].elements for index in group)


def _plan(tensors: Sequence[Tensor], admitted: Sequence[frozenset[str]], candidate: str, least: int) -> Plan:
    codecs = ["none"] * len(tensors)
    for group in groups(tensors):
        if _size(tensors, group) < least:
            continue
        allowed = frozenset.intersection(*(admitted[index] for index in group))
        mild = [name for name in CANDIDATES[: lossiness(candidate) + 1] if name in allowed]
        for index in group:
            codecs[index] = mild[-1]
    return Plan(tuple(codecs))


def _is_admitted(plan: Plan, tensors: Sequence[Tensor], admitted: Sequence[frozenset[str]]) -> bool:
    if len(plan.codecs) != len(tensors):
        return False
    return all(codec in allowed for codec, allowed in zip(plan.codecs, admitted, strict=True))


def _loss(plan: Plan, tensors: Sequence[Tensor]) -> tuple[int, int]:
    """Orders plans by what they leave out: the lossiest codec, then how much of the model has one."""
    compressed = sum(t.elements for t, codec in zip(tensors, plan.codecs, strict=True) if codec != "none")
    return lossiness(plan.worst), compressed


def _reason(
    plan: Plan, seconds: float, predicted: dict[str, float], tensors: Sequence[Tensor], *, stays: bool
) -> str:
    text = f"{plan.describe(tensors)}: {format_duration(seconds)} a step expected"
    if stays:
        text += f"; in force, and no other gains {100 * HYSTERESIS:.0f} %"
    others = [f"{name} {format_duration(taken)}" for name, taken in predicted.items()]
    if plan.worst == "none":
        others = others[1:]
        return text + (f" ({', '.join(others)}): compression would gain nothing" if others else "")
    return text + f" ({', '.join(others)})"
