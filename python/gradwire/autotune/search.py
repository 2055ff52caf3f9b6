"""Finds a faster setting by measuring: coordinate descent from the defaults, then a duel with them. Pure.

What is returned has won its duel, or is the default: the search itself believes single races, which noise can win.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gradwire.autotune.duel import REPEATS, Duel, fight
from gradwire.autotune.race import Measure, race
from gradwire.autotune.search_space import Box, Setting

FEWEST_TRIALS = 2 * REPEATS + 6  # a duel, and races enough to find somebody for it
_MOST_DUELS = 3  # each is another chance for luck


class Interrupted(Exception):
    """Raised by a Measure when somebody wants the search to end now."""


class _Spent(Exception):
    """No trials are left."""


def require_enough(trials: int) -> None:
    """Raises: ValueError: too few trials to find and to prove anything."""
    if trials < FEWEST_TRIALS:
        raise ValueError(
            f"tune: --trials {trials}: expected {FEWEST_TRIALS} or more, of which {2 * REPEATS} are for the comparison "
            "with the defaults"
        )


@dataclass
class Search:
    """What is asked and what was found so far; `found` holds at any time, also after an interruption.

    Attributes:
        trials: launches that may be made, at least FEWEST_TRIALS.
        path: settings that were the best so far, one after the other; the first is where the search began.
        duels: of settings with the defaults, in order.
        is_interrupted: measuring was stopped before the end.
    """

    box: Box
    trials: int
    path: list[Setting] = field(default_factory=list)
    duels: list[Duel] = field(default_factory=list)
    is_interrupted: bool = False
    _used: int = 0
    _cannot_run: set[Setting] = field(default_factory=set)

    def __post_init__(self) -> None:
        require_enough(self.trials)

    @property
    def found(self) -> Setting:
        """The setting to take: one that has won its duel, or the defaults."""
        return next((duel.setting for duel in self.duels if duel.is_won), self.box.default)

    @property
    def won(self) -> Duel | None:
        """The duel that was won, if any."""
        return next((duel for duel in self.duels if duel.is_won), None)

    def run(self, measure: Measure, starts: Sequence[Setting] = ()) -> None:
        """Searches, then lets the best few fight the defaults until one wins. Ends early when measure raises
        Interrupted; other errors of measure pass.

        Args:
            measure: seconds a step under a setting; every call is a trial.
            starts: settings that somebody expects to be good, tried before all others.
        """
        try:
            self._look(measure, starts)
            self._prove(measure)
        except Interrupted:
            self.is_interrupted = True

    def _counted(self, measure: Measure, least_left: int) -> Measure:
        """Returns measure, which raises _Spent instead where fewer than least_left trials would be left."""

        def call(setting: Setting) -> float:
            if self._used + 1 > self.trials - least_left:
                raise _Spent
            self._used += 1
            seconds = measure(setting)
            if seconds == float("inf"):
                self._cannot_run.add(setting)
            return seconds

        return call

    def _look(self, measure: Measure, starts: Sequence[Setting]) -> None:
        counted = self._counted(measure, 2 * REPEATS)
        self.path = [self.box.default]
        try:
            if others := [start for start in dict.fromkeys(starts) if start != self.box.default]:
                self._take(race(self.box.default, others, counted))
            while self._pass(counted):
                pass
        except _Spent:
            return

    def _take(self, setting: Setting) -> bool:
        """Notes a new best. Returns whether it is one."""
        if setting == self.path[-1]:
            return False
        self.path.append(setting)
        return True

    def _pass(self, measure: Measure) -> bool:
        """Walks along each knob once. Returns whether anything got better; where it was before, it does not go."""
        moved = False
        for index in range(len(self.box.knobs)):
            moved |= self._walk(index, measure)
        return moved

    def _walk(self, index: int, measure: Measure) -> bool:
        """Goes along one knob, as long as it gets better."""
        moved = False
        directions = [1, -1]
        while directions:
            reached = {by: self.box.neighbour(self.path[-1], index, by) for by in directions}
            new = {by: at for by, at in reached.items() if at is not None and self._is_new(at)}
            if not new or not self._take(race(self.path[-1], list(new.values()), measure)):
                return moved
            moved = True
            directions = [by for by, at in new.items() if at == self.path[-1]]
        return moved

    def _is_new(self, setting: Setting) -> bool:
        """False for who was the best before, and for who cannot run, which may take long to tell."""
        return setting not in self.path and setting not in self._cannot_run

    def _prove(self, measure: Measure) -> None:
        candidates = [setting for setting in reversed(self.path) if setting != self.box.default]
        for setting in candidates[:_MOST_DUELS]:
            if self.trials - self._used < 2 * REPEATS:
                return  # a duel that cannot be fought to its end proves nothing
            self.duels.append(Duel(setting))
            fight(self.duels[-1], self.box.default, self._counted(measure, 0))
            if self.duels[-1].is_won:
                return
