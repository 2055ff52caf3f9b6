"""An A/B experiment: the same training command under several codecs and seeds, interleaved.

Arms are compared on the same seeds. Runs go seed by seed, and the order of the arms rotates. So a machine that slows
down or warms up affects all arms alike.
"""

from __future__ import annotations

import math
import re
import statistics
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gradwire import result
from gradwire.launch.child import Host, Line, LocalHost
from gradwire.launch.console import say
from gradwire.launch.supervisor import Placement, run_job
from gradwire.result import RunProgress, RunResult
from gradwire.settings.units import parse_rate

UNSHAPED = "unshaped"
_LAST_LINES = 20
_PROGRESS_SECONDS = 0.25  # between two looks at a run's progress


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        arms: codec specs. The first is the baseline, with which the others are compared.
        servers: None: one per worker.
        bandwidth: rate of each host's link, as "100mbit". None: not shaped.
        report: folder for the page and the logs.
    """

    command: tuple[str, ...]
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    workers: int
    servers: int | None
    bandwidth: str | None
    report: Path

    def __post_init__(self) -> None:
        if not self.arms:
            raise ValueError(
                "ab: no --arm was given: name at least one codec, for example --arm none --arm 2bit"
            )
        if twice := [arm for arm in self.arms if self.arms.count(arm) > 1]:
            raise ValueError(
                f"ab: --arm {twice[0]} is given twice: name each arm once, and repeat runs with --seeds"
            )
        if not self.seeds:
            raise ValueError("ab: --seeds 0: expected at least 1")
        if self.bandwidth is not None:
            parse_rate(self.bandwidth)

    def order(self) -> Iterator[tuple[str, int]]:
        """Yields (arm, seed) seed by seed. Each seed begins with another arm."""
        for index, seed in enumerate(self.seeds):
            turn = index % len(self.arms)
            for arm in (*self.arms[turn:], *self.arms[:turn]):
                yield arm, seed


@dataclass(frozen=True)
class Run:
    """One arm under one seed."""

    arm: str
    seed: int
    result: RunResult
    wall_seconds: float

    def seconds(self) -> tuple[float, ...]:
        """Returns the seconds at the end of each epoch. If the record has none, the whole run's time in equal parts."""
        if self.result.seconds_per_epoch is not None:
            return self.result.seconds_per_epoch
        epochs = len(self.result.per_epoch)
        return tuple(self.wall_seconds * (index + 1) / epochs for index in range(epochs))

    def bytes(self) -> tuple[float, ...] | None:
        """Returns one worker's bytes at the socket by the end of each epoch. None: the record has none.

        Start-up is left out where the bytes of a step and the number of steps are known.
        """
        if self.result.bytes_per_step is not None and self.result.steps is not None:
            total = self.result.bytes_per_step * self.result.steps
        elif self.result.bytes_total is not None:
            total = self.result.bytes_total
        else:
            return None
        epochs = len(self.result.per_epoch)
        return tuple(total * (index + 1) / epochs for index in range(epochs))

    def speed(self) -> float:
        """Returns images per second, or epochs per second if the record has none. Only ratios of it are used."""
        return self.result.images_per_second or len(self.result.per_epoch) / self.seconds()[-1]

    def record(self) -> dict[str, Any]:
        values = {
            name: value for name, value in vars(self.result).items() if name not in ("metric", "per_epoch")
        }
        per_epoch = [value if math.isfinite(value) else None for value in self.result.per_epoch]
        return {
            "seed": self.seed,
            self.result.metric: per_epoch[-1],
            "diverged": self.result.diverged,
            "wall_seconds": round(self.wall_seconds, 3),
            f"{self.result.metric}_per_epoch": per_epoch,
            **values,
        }


def check_arms(arms: Sequence[str]) -> None:
    """Finds a misspelt arm before the first run.

    Raises: ValueError: an unknown codec, parameter or reply; the text names the nearest valid one.
    """
    try:
        from gradwire.compress import Compression
        from gradwire.controller.budget import requested
    except ImportError:  # without the compiled part a command of the user's own may still run
        return
    for arm in arms:
        try:
            if requested(arm) is None:
                Compression.parse(arm)
        except ValueError as error:
            raise ValueError(f"ab: --arm {arm}: {error}") from None


class Progress(Protocol):
    """Shows an experiment while it runs.

    Threading: moved() is called from a thread of its own, the others from the thread that called run_plan().
    """

    def started(self, arm: str, seed: int) -> None: ...
    def line(self, line: Line) -> None: ...
    def moved(self, progress: RunProgress) -> None: ...
    def finished(self, run: Run) -> None: ...
    def failed(self, failure: RunFailed) -> None: ...


class RunFailed(Exception):
    """One arm failed under one seed. The other runs go on.

    Attributes:
        exit_code: that of the process that failed.
        last_lines: the end of its output.
        is_the_commands: every arm would fail so, as the command itself lacks something.
    """

    def __init__(
        self,
        arm: str,
        seed: int,
        cause: str,
        exit_code: int,
        last_lines: Sequence[str] = (),
        *,
        is_the_commands: bool = False,
    ) -> None:
        super().__init__(f"{arm}, seed {seed}: {cause}")
        self.arm = arm
        self.seed = seed
        self.cause = cause
        self.exit_code = exit_code
        self.last_lines = tuple(last_lines)
        self.is_the_commands = is_the_commands

    def record(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "cause": self.cause,
            "exit_code": self.exit_code,
            "last_lines": list(self.last_lines),
        }


class Interrupted(Exception):
    """A signal ended the experiment. Runs that had ended before are kept."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@dataclass
class Conditions:
    """Where processes run."""

    link: str = UNSHAPED
    placement: Placement | None = None
    reason: str | None = None  # why the link is not as asked for; None: it is


class Placed(Protocol):
    """What network() needs of a plan. Plan documents these attributes."""

    @property
    def workers(self) -> int: ...
    @property
    def servers(self) -> int | None: ...
    @property
    def bandwidth(self) -> str | None: ...


@contextmanager
def network(plan: Placed) -> Iterator[Conditions]:
    """Gives every worker and server its own host behind a link of plan.bandwidth, if that is possible here."""
    if plan.bandwidth is None:
        yield Conditions()
        return
    from gradwire.terminal.machine import netlab_reason

    reason = netlab_reason()
    if reason is not None:
        yield Conditions(reason=reason)
        return
    from gradwire.netlab import NetLab

    servers = plan.workers if plan.servers is None else plan.servers
    with NetLab(hosts=plan.workers + servers, bandwidth=plan.bandwidth) as lab:
        bridge = LocalHost(lab.bridge_address)

        def place(role: str, rank: int) -> Host:
            return (
                bridge if role == "scheduler" else lab.host(rank if role == "worker" else plan.workers + rank)
            )

        yield Conditions(plan.bandwidth, place)


@dataclass
class _Log:
    """Writes a run's output to a file, and keeps each process's last lines in case it fails. A file that cannot be
    written any more (a full disk) is reported once, and the run goes on without it."""

    path: Path
    progress: Progress
    last: dict[tuple[str, int | None], deque[str]] = field(default_factory=dict)

    @contextmanager
    def open(self) -> Iterator[Callable[[Line], None]]:
        file = self.path.open("w", encoding="utf-8", buffering=1)
        is_written = True

        def take(line: Line) -> None:
            nonlocal is_written
            name = line.role if line.rank is None else f"{line.role} {line.rank}"
            try:
                if is_written:
                    file.write(f"[{name}] {line.text}\n")
            except OSError as error:
                is_written = False
                why = f"cannot be written ({error.strerror})"
                say(f"ab: {self.path} {why}: the run goes on, and further lines are not written there")
            self.last.setdefault((line.role, line.rank), deque(maxlen=_LAST_LINES)).append(line.text)
            self.progress.line(line)

        try:
            yield take
        finally:
            with suppress(OSError):  # what could not be written is tried again
                file.close()


def run_plan(plan: Plan, conditions: Conditions, progress: Progress) -> Iterator[Run | RunFailed]:
    """Runs all arms and seeds, one after the other, and yields each run when it ends.

    A run that fails is yielded too, and the others go on. If the command itself is at fault, none is tried after it:
    where the first run says so, or every arm fails under the first seed.

    Raises:
        Interrupted: a signal came. No process is left running.
    """
    logs = plan.report / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    first: Run | None = None
    for number, (arm, seed) in enumerate(plan.order(), start=1):
        progress.started(arm, seed)
        log = _Log(logs / f"{re.sub(r'[^A-Za-z0-9.=_-]+', '-', arm)}-seed{seed}.log", progress)
        try:
            run = _run_one(plan, arm, seed, conditions, log)
            first = first or run
            if first.result.metric != run.result.metric:
                metrics = f"{run.result.metric}, but {first.arm} gave {first.result.metric}"
                cause = f"the record has {metrics}: all runs must write the same metric"
                raise RunFailed(arm, seed, cause, 1)
        except RunFailed as failure:
            progress.failed(failure)
            yield failure
            if first is None and failure.is_the_commands:
                return
        else:
            progress.finished(run)
            yield run
        if number == len(plan.arms) and first is None:
            return


@contextmanager
def _followed(record: Path, progress: Progress) -> Iterator[None]:
    """Shows what a run says of its progress, while the block runs it."""
    ended = threading.Event()

    def follow() -> None:
        last: RunProgress | None = None
        while not ended.wait(_PROGRESS_SECONDS):
            found = result.read_progress(record)
            if found is not None and found != last:
                progress.moved(found)
                last = found

    thread = threading.Thread(target=follow, name="gradwire-ab-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _run_one(plan: Plan, arm: str, seed: int, conditions: Conditions, log: _Log) -> Run:
    with tempfile.TemporaryDirectory(prefix="gradwire-ab-") as folder:
        path = Path(folder) / "result.json"

        def worker_env(rank: int) -> Mapping[str, str]:
            return {"GRADWIRE_RESULT": str(path if rank == 0 else path.with_name(f"result-{rank}.json"))}

        try:
            with log.open() as output, _followed(path, log.progress):
                job = run_job(
                    plan.command,
                    plan.workers,
                    plan.servers,
                    env={"GRADWIRE_COMPRESSION": arm, "GRADWIRE_SEED": str(seed)},
                    worker_env=worker_env,
                    placement=conditions.placement,
                    output=output,
                )
        except OSError as error:  # a program cannot be started, or the log not opened
            raise RunFailed(arm, seed, str(error), 1) from None
        if job.interrupted is not None:
            raise Interrupted(f"{arm}, seed {seed}: {job.cause}", job.exit_code)
        if job.exit_code != 0:
            lines = log.last.get((job.failed_role or "", job.failed_rank), ())
            raise RunFailed(arm, seed, f"{job.cause}; all output: {log.path}", job.exit_code, tuple(lines))
        try:
            record = result.read(path)
        except FileNotFoundError:
            what = "the command ended with exit code 0 but wrote nothing to GRADWIRE_RESULT"
            how = (
                "call gradwire.result.write(accuracy_per_epoch=[...]) at its end, or loss_per_epoch=[...] of a job "
                "that has no accuracy"
            )
            raise RunFailed(arm, seed, f"{what}: {how}", 1, is_the_commands=True) from None
        except ValueError as error:
            raise RunFailed(arm, seed, str(error), 1) from None
        if arm != "none" and (reason := _why_not_compressed(record)) is not None:
            raise RunFailed(arm, seed, reason, 1)
    return Run(arm, seed, record, job.wall_seconds)


def _why_not_compressed(record: RunResult) -> str | None:
    """Says why a run was not of its arm, and what to do. None: nothing tells that it was not."""
    how = "the variable then replaces the codec that is given there"
    if record.took_compression is False:
        return (
            "no store of the command used the codec of GRADWIRE_COMPRESSION: call store.set_gradient_compression(...) "
            f"or wrap the optimizer; {how}"
        )
    if record.took_compression is None and record.has_store is False:
        return (
            "nothing of gradwire exchanged gradients in worker 0, so none was compressed: register gradwire's DDP "
            f"hook, or wrap the optimizer; {how} (a script that compresses by itself gives took_compression=True to "
            "gradwire.result.write())"
        )
    return None


def mean_or_none(values: Sequence[float | None]) -> float | None:
    """Returns the mean, or None if any value is missing."""
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present and len(present) == len(values) else None
