"""What `gradwire tune` found: every launch, and in words what to make of them."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gradwire.ab.summary import write_interval
from gradwire.autotune.duel import REPEATS, Duel
from gradwire.autotune.search import Search
from gradwire.autotune.search_space import Setting
from gradwire.settings.units import format_duration

Stage = Literal["first", "search", "duel"]


@dataclass(frozen=True)
class Trial:
    """One launch. step_seconds: None where the job could not run, for the reason in `failure`."""

    stage: Stage
    setting: Setting
    step_seconds: float | None
    wall_seconds: float
    failure: str | None = None


@dataclass(frozen=True)
class Outcome:
    """Attributes: notes: what readers must know besides, such as a link that is not as asked for."""

    search: Search
    trials: tuple[Trial, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        box = self.search.box
        if (won := self.search.won) is not None:
            default, own = (format_duration(statistics.median(side)) for side in zip(*won.pairs, strict=True))
            return (
                f"{box.text(won.setting)}: {write_interval(won.speed, '{:.3g}')} times as fast as the defaults, in "
                f"each of {REPEATS} pairs of launches: {own} instead of {default} a step."
            )
        if self.search.is_interrupted:
            return f"Interrupted after {len(self.trials)} launches: the defaults stay{self._unproven()}."
        tried = len({trial.setting for trial in self.trials} - {box.default})
        if not self.search.duels:
            return f"The defaults stay: none of {tried} other settings was faster."
        return (
            f"The defaults stay: {tried} other settings were tried, and of the best none was faster in each of "
            f"{REPEATS} pairs of launches."
        )

    def _unproven(self) -> str:
        best = self.search.path[-1] if self.search.path else self.search.box.default
        if best == self.search.box.default:
            return ""
        return f", for {self.search.box.text(best)}, the best so far, has not won {REPEATS} pairs of launches"

    def record(self) -> dict[str, Any]:
        """The record that --json writes; `gradwire run --settings` takes its "settings"."""
        box, won = self.search.box, self.search.won
        return {
            "settings": box.changes(self.search.found),
            "verdict": self.verdict,
            "speed": None if won is None else asdict(won.speed),
            "interrupted": self.search.is_interrupted,
            "defaults": {knob.name: knob.default for knob in box.knobs},
            "box": box.record(),
            "notes": list(self.notes),
            "duels": [self._duel_record(duel) for duel in self.search.duels],
            "trials": [self._trial_record(trial) for trial in self.trials],
        }

    def _duel_record(self, duel: Duel) -> dict[str, Any]:
        return {
            "settings": self.search.box.changes(duel.setting),
            "won": duel.is_won,
            "pairs": [[default, _finite(own)] for default, own in duel.pairs],
        }

    def _trial_record(self, trial: Trial) -> dict[str, Any]:
        return {
            "stage": trial.stage,
            "settings": self.search.box.changes(trial.setting),
            "step_seconds": trial.step_seconds,
            "wall_seconds": round(trial.wall_seconds, 3),
            "failure": trial.failure,
        }


def _finite(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds
