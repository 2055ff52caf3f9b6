"""The proof that a setting owes: faster than the defaults in each of seven interleaved pairs of launches.

By luck alone a setting that is as fast as the defaults wins all seven once in 128 times.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradwire.autotune.race import Measure
from gradwire.autotune.search_space import Setting
from gradwire.report.paired_statistics import Interval, paired_ratio

REPEATS = 7


@dataclass
class Duel:
    """A setting against the defaults. pairs: seconds a step of the defaults and of the setting, side by side."""

    setting: Setting
    pairs: list[tuple[float, float]] = field(default_factory=list)

    @property
    def is_lost(self) -> bool:
        return any(own >= default for default, own in self.pairs)

    @property
    def is_won(self) -> bool:
        return len(self.pairs) >= REPEATS and not self.is_lost

    @property
    def speed(self) -> Interval:
        """How many times as fast as the defaults, with its 95 % interval; of at least one pair of finite times."""
        return paired_ratio([default for default, _ in self.pairs], [own for _, own in self.pairs])


def fight(duel: Duel, default: Setting, measure: Measure) -> None:
    """Measures pair after pair, who goes first alternating, until the duel is won or lost. duel has what was measured
    at any time, also where measure raises."""
    while not duel.is_won and not duel.is_lost:
        if len(duel.pairs) % 2 == 0:
            of_default = measure(default)
            own = measure(duel.setting)
        else:
            own = measure(duel.setting)
            of_default = measure(default)
        duel.pairs.append((of_default, own))
