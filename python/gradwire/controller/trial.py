"""Was the prediction right? The chosen plan and the baselines take turns, and measured steps decide. Pure.

A round is a block of steps for each arm, in an order that rotates, so that what else the machine and the network do
weighs on all arms alike. A baseline that would take twice the chosen plan's time, by a prediction that has proved right
for the better one, is spared: its steps would be what a choice costs most on a slow link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradwire.controller.choice import HYSTERESIS, WORTH
from gradwire.report.paired_statistics import Interval, paired_ratio

_FEWEST_ROUNDS = 3
_MOST_ROUNDS = 7
_SLOW, _FAR_SLOWER = (
    1.25,
    2.0,
)  # times the chosen plan's step: a baseline is out after two such rounds, after one


@dataclass
class Trial:
    """One comparison.

    Attributes:
        chosen: the arm that was predicted to be best.
        losses: by arm, in what order they leave things out: more has to gain 1 % for certain, or 5 %.
        predicted: seconds of a step, by arm.
    """

    chosen: str
    losses: Mapping[str, int]
    predicted: Mapping[str, float]
    _rounds: list[dict[str, float]] = field(default_factory=list)

    def next_round(self) -> list[str]:
        """Returns the arms of the next round in their order; empty once all is decided."""
        if self._is_over():
            return []
        out = self._out()
        arms = [arm for arm in self.losses if arm not in out]
        turn = len(self._rounds) % len(arms)
        return arms[turn:] + arms[:turn]

    def add(self, seconds: Mapping[str, float]) -> None:
        """Takes a round: the seconds of a step of each arm that had a turn."""
        self._rounds.append(dict(seconds))

    def best(self) -> str:
        """Returns the arm to keep.

        Requires: at least one round.
        """
        tried = [arm for arm in self._baselines() if self._both(arm, self.chosen)]
        if all(self._stands(arm) for arm in tried):
            return self.chosen
        found, *others = sorted(tried, key=lambda arm: self.losses[arm])
        for other in others:
            if self._gains(other, found):
                found = other
        return found

    def seconds(self) -> dict[str, float]:
        """Returns each arm's mean over its rounds."""
        found = {}
        for arm in self.losses:
            own = [one[arm] for one in self._rounds if arm in one]
            if own:
                found[arm] = sum(own) / len(own)
        return found

    def _baselines(self) -> list[str]:
        return [arm for arm in self.losses if arm != self.chosen]

    def _is_over(self) -> bool:
        left = [arm for arm in self._baselines() if arm not in self._out()]
        if not left or len(self._rounds) >= _MOST_ROUNDS:
            return True
        return len(self._rounds) >= _FEWEST_ROUNDS and all(self._is_clear(arm) for arm in left)

    def _out(self) -> set[str]:
        """Baselines that are so much slower that they need no more steps, or none at all."""
        found = self._spared()
        for arm in self._baselines():
            ratios = [one[arm] / one[self.chosen] for one in self._rounds if arm in one]
            if any(ratio >= _FAR_SLOWER for ratio in ratios) or sum(r >= _SLOW for r in ratios) >= 2:
                found.add(arm)
        return found

    def _spared(self) -> set[str]:
        """Baselines that need no step to be known as far slower; never the one of which least is expected."""
        measured = self.seconds()
        least = min(self._baselines(), key=lambda arm: self.predicted[arm])
        proved = min(1.0, measured.get(least, self.predicted[least]) / self.predicted[least])
        chosen = max(self.predicted[self.chosen], measured.get(self.chosen, 0.0))
        return {
            arm
            for arm in self._baselines()
            if arm not in measured and arm != least and self.predicted[arm] * proved >= _FAR_SLOWER * chosen
        }

    def _both(self, arm: str, to: str) -> list[dict[str, float]]:
        """Rounds in which both had turns."""
        return [one for one in self._rounds if arm in one and to in one]

    def _ratio(self, arm: str, to: str) -> Interval:
        both = self._both(arm, to)
        return paired_ratio([one[arm] for one in both], [one[to] for one in both])

    def _allowed(self, baseline: str) -> float:
        """What the chosen plan's step may be in the baseline's."""
        return 1 - WORTH if self.losses[self.chosen] > self.losses[baseline] else 1 + WORTH

    def _is_clear(self, baseline: str) -> bool:
        if not self._both(self.chosen, baseline):  # spared until now
            return False
        ratio = self._ratio(self.chosen, baseline)
        allowed = self._allowed(baseline)
        return ratio.low is not None and ratio.high is not None and not ratio.low <= allowed <= ratio.high

    def _stands(self, baseline: str) -> bool:
        if self.losses[self.chosen] > self.losses[baseline]:
            return self._gains(self.chosen, baseline)
        return not self._gains(baseline, self.chosen)

    def _gains(self, arm: str, to: str) -> bool:
        """Whether an arm that leaves out more is worth it: for certain, or by so much that luck is unlikely."""
        if not self._both(arm, to):  # one was out before the other's first turn
            seconds = self.seconds()
            return seconds[arm] <= seconds[to] * (1 - HYSTERESIS)
        ratio = self._ratio(arm, to)
        is_certain = ratio.high is not None and ratio.high < 1
        return ratio.mean <= 1 - (WORTH if is_certain else HYSTERESIS)
