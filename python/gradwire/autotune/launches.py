"""Runs a job for a few dozen steps under one setting, and says how long they took."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gradwire.ab.experiment import Conditions
from gradwire.autotune import step_times
from gradwire.autotune.search import Interrupted
from gradwire.autotune.search_space import Box, Setting
from gradwire.autotune.step_times import StepTimes
from gradwire.launch import step_clock
from gradwire.launch.child import Line
from gradwire.launch.supervisor import JobResult, run_job

_FIRST_SECONDS = 1800.0  # nobody knows yet how long a launch takes
_LAST_LINES = 20
_STEPS_SECONDS = 5.0  # of steps make a typical one, where a step is short
_FEWEST_STEPS, _MOST_STEPS = 10, 40


@dataclass(frozen=True)
class Job:
    """What is launched again and again.

    Attributes:
        servers: as `gradwire run -s`.
        bandwidth: of each host's link, as "1gbit"; None: not shaped.
    """

    command: tuple[str, ...]
    workers: int
    servers: int | None
    bandwidth: str | None


@dataclass(frozen=True)
class Launch:
    """One launch. times: None where the job could not run, for the reason in `failure`."""

    setting: Setting
    times: StepTimes | None
    wall_seconds: float
    failure: str | None = None


class LaunchFailed(Exception):
    """A job did not run under the defaults; exit_code is the failing process's own."""

    def __init__(self, text: str, exit_code: int, last_lines: tuple[str, ...]) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.last_lines = last_lines


@dataclass
class Launcher:
    """Launches a job under settings of a box. on_line takes what its processes write."""

    job: Job
    box: Box
    conditions: Conditions
    on_line: Callable[[Line], None] = lambda line: None
    timeout: float = _FIRST_SECONDS
    _last: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))

    def launch(self, setting: Setting, steps: int) -> Launch:
        """Runs the job until every worker has taken WARM_UP steps and then `steps`.

        Raises:
            Interrupted: a signal came; nothing is left running.
            LaunchFailed: it cannot run under the defaults.
        """
        self._last.clear()
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="gradwire-tune-") as folder:
                result = self._run(setting, steps, Path(folder))
                if result.interrupted is not None:
                    raise Interrupted(result.cause)
                times = step_times.read(Path(folder), self.job.workers)
        except OSError as error:  # a program cannot be started
            return self._failed(setting, str(error), 1, time.monotonic() - began)
        if times is not None:
            return Launch(setting, times, result.wall_seconds)
        return self._failed(setting, self._failure(result, steps), result.exit_code or 1, result.wall_seconds)

    def _failed(self, setting: Setting, failure: str, exit_code: int, wall_seconds: float) -> Launch:
        if setting == self.box.default:
            raise LaunchFailed(f"tune: {failure}", exit_code, tuple(self._last))
        return Launch(setting, None, wall_seconds, failure)

    def _run(self, setting: Setting, steps: int, folder: Path) -> JobResult:
        def take(line: Line) -> None:
            name = line.role if line.rank is None else f"{line.role} {line.rank}"
            self._last.append(f"[{name}] {line.text}")
            self.on_line(line)

        return run_job(
            self.job.command,
            self.job.workers,
            self.job.servers,
            env=self.box.environment(setting),
            worker_env=lambda rank: clock_variables(folder, steps),
            placement=self.conditions.placement,
            output=take,
            timeout=self.timeout,
        )

    def _failure(self, result: JobResult, steps: int) -> str:
        if result.cause is not None:
            return result.cause
        return (
            f"{self.job.command[0]} ended before every worker had taken {step_times.WARM_UP + steps} steps of a "
            "PyTorch optimizer: give a command that trains for longer"
        )


def clock_variables(folder: Path, steps: int) -> Mapping[str, str]:
    """Returns what a worker needs to have its steps timed."""
    return {
        "PYTHONPATH": step_clock.python_path(),
        "GRADWIRE_STEP_TIMES": str(folder),
        "GRADWIRE_TIMED_STEPS": str(steps),
    }


def steps_for(step_seconds: float) -> int:
    """Returns how many steps a launch should time: some seconds of them, and enough for a middle half."""
    return max(_FEWEST_STEPS, min(_MOST_STEPS, round(_STEPS_SECONDS / step_seconds)))
