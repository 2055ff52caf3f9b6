"""The target of the experiments' tables: close to what the first arm reaches.

`gradwire ab` takes a target that all arms reach. Here an arm that falls short of the first one has to show.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gradwire.ab.experiment import Run

_ACCURACY_MARGIN = 0.005  # half a point
_LOSS_MARGIN = 0.02  # of the loss itself


def first_finite(runs: Sequence[Run], arms: Sequence[str]) -> list[Run]:
    """Returns the finite runs of the first arm that has any."""
    of_arms = ([run for run in runs if run.arm == arm and not run.result.diverged] for arm in arms)
    return next((found for found in of_arms if found), [])


def near_target(runs: Sequence[Run]) -> tuple[float, str]:
    """Chooses a target near the mean final metric of one arm's runs, at least one, such that each of them reaches it.

    Returns: the target, and the rule that set it.
    """
    mean = statistics.fmean(run.result.final for run in runs)
    arm = runs[0].arm
    if runs[0].result.metric == "accuracy":
        wanted, reached = mean - _ACCURACY_MARGIN, min(run.result.best for run in runs)
        if wanted <= reached:
            return wanted, f"half a point below the mean final accuracy of {arm}"
        return reached, f"the best accuracy that every run of {arm} reached"
    wanted, reached = mean + _LOSS_MARGIN * abs(mean), max(run.result.best for run in runs)
    if wanted >= reached:
        return wanted, f"2 % above the mean final loss of {arm}"
    return reached, f"the lowest loss that every run of {arm} reached"
