"""One question of the search: is any of these settings faster than the one that is best so far?

Pure: settings are measured by whoever calls. All are measured once a round, one after the other, the order turned from
round to round, so that a machine that slows down or warms up weighs on all alike; only ratios within a round count.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from gradwire.autotune.search_space import Setting

Measure = Callable[[Setting], float]  # seconds a step; infinity: it cannot run

# Of the best's time, in the mean after each round: who is slower is out, and who is faster has won already.
_HOPE = (1.02, 1.0, 0.995)
_CLEAR = (0.92, 0.96, 0.995)


def race(best: Setting, challengers: Sequence[Setting], measure: Measure) -> Setting:
    """Returns the fastest challenger that is faster than the best, or else the best itself."""
    ratios: dict[Setting, list[float]] = {challenger: [] for challenger in challengers}
    for number, (hope, clear) in enumerate(zip(_HOPE, _CLEAR, strict=True)):
        order = [best, *ratios]
        seconds = {setting: measure(setting) for setting in (order if number % 2 == 0 else order[::-1])}
        for challenger, found in ratios.items():
            found.append(_ratio(seconds[challenger], seconds[best]))
        means = {challenger: statistics.fmean(found) for challenger, found in ratios.items()}
        first = min(means, key=means.__getitem__)
        if means[first] < clear:
            return first
        ratios = {challenger: found for challenger, found in ratios.items() if means[challenger] < hope}
        if not ratios:
            return best
    return best


def _ratio(seconds: float, of_best: float) -> float:
    return float("inf") if seconds == float("inf") else seconds / of_best
