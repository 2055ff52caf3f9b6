"""One `gradwire tune` from its first launch to its outcome; tells a Watcher what happens, and prints nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gradwire.autotune import start
from gradwire.autotune.launches import Launch, Launcher, LaunchFailed, steps_for
from gradwire.autotune.search import Interrupted, Search
from gradwire.autotune.search_space import Box, Setting
from gradwire.autotune.summary import Outcome, Stage, Trial

_FIRST_STEPS = 10
_PATIENCE = 4.0  # times a launch under the defaults that one under another setting may take
_LEAST_SECONDS = 60.0  # that it may take at least


class Watcher(Protocol):
    """Is told what happens, as it happens."""

    def expects(self, launches: int, seconds: float, steps: int) -> None:
        """So many launches, of so many seconds each, at most; each times so many steps."""
        ...

    def says(self, text: str) -> None: ...
    def started(self, stage: Stage, setting: Setting) -> None: ...
    def finished(self, trial: Trial) -> None: ...


@dataclass
class Session:
    """Attributes: steps: to be timed in a launch; None: as many as take some seconds."""

    launcher: Launcher
    trials: int
    steps: int | None
    watcher: Watcher
    done: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def box(self) -> Box:
        return self.launcher.box

    def run(self) -> Outcome:
        """Searches until the trials are spent, nothing gets better, or Ctrl-C; what was found is kept.

        Raises:
            LaunchFailed: the job does not run under the defaults.
            ValueError: it sends nothing; or some of its steps send more than others.
        """
        search = Search(self.box, self.trials)
        try:
            starts = self._begin()
            search.run(lambda setting: self._measure("duel" if search.duels else "search", setting), starts)
        except (Interrupted, KeyboardInterrupt):  # the latter between two launches
            search.is_interrupted = True
        except LaunchFailed as failure:
            if not self.done:
                raise
            search.is_interrupted = True
            self.notes.append(f"the search ended early: under the defaults, which had run before, {failure}")
            self.watcher.says(f"NOTE: {self.notes[-1]}")
        return Outcome(search, tuple(self.done), tuple(self.notes))

    def _begin(self) -> Sequence[Setting]:
        """Launches once under the defaults, to know how long all will take. Returns where the search should begin."""
        self.watcher.started("first", self.box.default)
        steps = self.steps or _FIRST_STEPS
        first = self.launcher.launch(self.box.default, steps)
        assert first.times is not None  # or launch() would have raised
        self._note("first", first)
        if first.times.store in (None, "local", "device"):
            raise ValueError(
                f"tune: the command trains with {first.times.store or 'no'} store of gradwire's, so it sends nothing "
                "that settings could speed up: expected one that joins a job, as gradwire.torch does under gradwire run"
            )
        if first.times.unlike is not None:
            raise ValueError(
                f"tune: the command trains with {first.times.unlike}, so some of its steps send far more than others, "
                "and a few of them say nothing of the rest: expected steps that are alike; tune it with "
                "DistributedOptimizer and a codec that is named, such as int4, and use the settings with yours"
            )
        self.steps = self.steps or steps_for(first.times.typical)
        seconds = first.wall_seconds + (self.steps - steps) * first.times.typical
        self.launcher.timeout = max(_LEAST_SECONDS, _PATIENCE * seconds)
        self.watcher.expects(self.trials, seconds, self.steps)
        try:
            found = start.starts(self.launcher.job, self.box, first.times)
        except (start.NoStart, ValueError) as reason:  # what the simulator refuses costs its advice alone
            self.watcher.says(f"beginning at the defaults: {reason}")
            return []
        what = self.box.text(found[0]) if found else "the defaults, which are as good as any"
        self.watcher.says(f"the simulator advises {what}")
        return found

    def _measure(self, stage: Stage, setting: Setting) -> float:
        """Returns seconds a step, infinity where the job cannot run so."""
        self.watcher.started(stage, setting)
        assert self.steps is not None
        launch = self.launcher.launch(setting, self.steps)
        self._note(stage, launch)
        return float("inf") if launch.times is None else launch.times.typical

    def _note(self, stage: Stage, launch: Launch) -> None:
        seconds = None if launch.times is None else launch.times.typical
        self.done.append(Trial(stage, launch.setting, seconds, launch.wall_seconds, launch.failure))
        self.watcher.finished(self.done[-1])
