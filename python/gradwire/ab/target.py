"""Chooses the accuracy or loss at which arms are compared, and finds when a run reached it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.ab.experiment import Run
from gradwire.ab.names import arm_name

_LOSS_DIGITS = 3  # of a rounded loss
_SLACK = 1e-9  # of a step of rounding: 0.57 is 57 steps of 0.01, though 0.57 / 0.01 is less


@dataclass(frozen=True)
class Target:
    """Attributes:
    value: accuracy as a fraction, or loss. None: no run is finite.
    reason: the rule, and the run that set the value.
    """

    value: float | None
    reason: str


def common_target(runs: Sequence[Run], left_out: Sequence[str] = ()) -> Target:
    """Chooses a target that every one of these runs reached, so that times to it are at the same accuracy.

    It is the lowest final accuracy of any run, rounded down by accuracy_below(), or the highest final loss, rounded up
    to three digits by loss_above().

    Args:
        runs: finite ones, of arms that are neither diverged nor judged worse than the first arm.
        left_out: the arms that are, for the reason.
    """
    if not runs:
        return Target(None, "no run is finite")
    without = f"; without {', '.join(map(arm_name, left_out))}" if left_out else ""
    if runs[0].result.metric == "accuracy":
        last = min(runs, key=lambda run: run.result.final)
        value = accuracy_below(last.result.final)
        rule = f"the lowest final accuracy of any run, {100 * last.result.final:.2f} %, rounded down"
    else:
        last = max(runs, key=lambda run: run.result.final)
        value = loss_above(last.result.final)
        rule = f"the highest final loss of any run, {last.result.final:.5g}, rounded up"
    return Target(value, f"{rule} (set by {arm_name(last.arm)}, seed {last.seed}{without})")


def accuracy_below(accuracy: float) -> float:
    """Rounds an accuracy down to a whole per cent, within 5 points of 0 or 100 % to a tenth, within half a point of
    either to a hundredth."""
    from_end = min(accuracy, 1 - accuracy)
    steps = 100 if from_end > 0.05 else 1000 if from_end > 0.005 else 10000
    return min(accuracy, math.floor(accuracy * steps + _SLACK) / steps)


def loss_above(loss: float) -> float:
    """Rounds a loss up to three digits."""
    if loss == 0:
        return loss
    decimals = _LOSS_DIGITS - 1 - math.floor(math.log10(abs(loss)))
    step = 10.0**-decimals
    return max(loss, round(math.ceil(loss / step - _SLACK) * step, max(decimals, 0)))


def seconds_to(run: Run, target: float) -> float | None:
    """Returns when a run reached target. None: never, or it diverged, so that its weights are of no use."""
    if run.result.diverged:
        return None
    return first_crossing(run.result.per_epoch, run.seconds(), target, run.result.metric == "accuracy")


def first_crossing(
    values: Sequence[float], times: Sequence[float], target: float, upwards: bool
) -> float | None:
    """Returns when values reached target, on a straight line between two of them. None: never.

    A target that the first value has reached counts at the first value's time: what came before is not known.
    """
    sign = 1 if upwards else -1
    for index, value in enumerate(values):
        if sign * value >= sign * target:
            if index == 0:
                return times[0]
            share = (target - values[index - 1]) / (value - values[index - 1])
            return times[index - 1] + share * (times[index] - times[index - 1])
    return None
