"""One run: a task trained by real workers over a store, under one arm and one seed. Its row is kept in a CSV."""

from __future__ import annotations

import csv
import os
import re
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from arms import power_sgd_rank
from gradwire import result
from gradwire.launch.child import Line
from gradwire.launch.supervisor import run_job
from gradwire.result import Metric, RunResult

EXPERIMENTS = Path(__file__).resolve().parent.parent
LOGS = EXPERIMENTS.parent / "report" / "codec_accuracy"
WORKERS = 4
LONGEST_SECONDS = 3600.0  # of one run, on a machine with much else to do
_LAST_LINES = 20


@dataclass(frozen=True)
class Task:
    """What is trained. script: below experiments/; flags: the same for all arms."""

    script: str
    flags: str


TASKS = {
    "lenet": Task("fashion_mnist/train.py", "--network lenet --limit 12800 --num-epochs 2 --batch-size 16"),
    "resnet8": Task(
        "fashion_mnist/train.py", "--network resnet8 --limit 6400 --num-epochs 2 --batch-size 16"
    ),
    "char_lm": Task("char_lm/train.py", "--network tiny --limit 3200 --num-epochs 6 --batch-size 8"),
}


@dataclass(frozen=True)
class Run:
    """Which run, of all there are to do."""

    task: str
    arm: str
    seed: int

    def command(self) -> list[str]:
        """What each worker runs."""
        task = TASKS[self.task]
        own = power_sgd_rank(self.arm) is None
        program = [str(EXPERIMENTS / task.script)]
        if not own:
            program = [str(Path(__file__).with_name("train_power_sgd.py")), task.script]
        return [sys.executable, *program, *task.flags.split(), "--kv-store", "allreduce"]

    def log(self) -> Path:
        name = re.sub(r"[^A-Za-z0-9.=_-]+", "-", self.arm)
        return LOGS / self.task / f"{name}-seed{self.seed}.log"


@dataclass(frozen=True)
class Row:
    """One run as it went: a line of results.csv."""

    task: str
    arm: str
    seed: int
    metric: Metric
    score: float
    bytes_per_step: int
    codec_seconds: float
    steps: int
    examples_per_second: float
    wall_seconds: float
    load: float  # of the machine, when the run had ended
    weights: str
    score_per_epoch: str  # numbers with spaces between
    flags: str  # a run with others is another run

    @classmethod
    def of(cls, run: Run, record: RunResult, wall_seconds: float) -> Row:
        return cls(
            task=run.task,
            arm=run.arm,
            seed=run.seed,
            metric=record.metric,
            score=record.final,
            bytes_per_step=int(record.bytes_per_step or 0),
            codec_seconds=round(record.codec_seconds or 0.0, 4),
            steps=int(record.steps or 0),
            examples_per_second=round(record.images_per_second or 0.0, 1),
            wall_seconds=round(wall_seconds, 2),
            load=round(os.getloadavg()[0], 1),
            weights=short_digest(record.weights_sha256 or ""),
            score_per_epoch=" ".join(f"{score:.6g}" for score in record.per_epoch),
            flags=TASKS[run.task].flags,
        )


def short_digest(weights: str) -> str:
    """Returns as much of a digest of weights as rows keep."""
    return weights[:12]


class RunFailed(Exception):
    """A run failed. interrupted: a signal to this process stopped it."""

    def __init__(self, text: str, last_lines: Sequence[str], interrupted: int | None) -> None:
        super().__init__(text)
        self.last_lines = tuple(last_lines)
        self.interrupted = interrupted


def carry_out(run: Run) -> Row:
    """Trains, and returns how it went; nothing is left running.

    Raises:
        RunFailed: a process failed, was stopped or wrote no usable record.
        OSError: Python cannot be started.
    """
    last: deque[str] = deque(maxlen=_LAST_LINES)
    log = run.log()
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gradwire-accuracy-") as folder, log.open("w") as file:
        path = Path(folder) / "record.json"

        def take(line: Line) -> None:
            text = f"[{line.role} {line.rank}] {line.text}"
            file.write(text + "\n")
            last.append(text)

        variables = {
            "GRADWIRE_COMPRESSION": run.arm,
            "GRADWIRE_SEED": str(run.seed),
            "GRADWIRE_RESULT": str(path),
        }
        job = run_job(run.command(), WORKERS, 0, env=variables, output=take, timeout=LONGEST_SECONDS)
        who = f"{run.task}, {run.arm}, seed {run.seed}"
        if job.exit_code != 0:
            raise RunFailed(f"{who}: {job.cause}; all output: {log}", last, job.interrupted)
        try:
            record = result.read(path)
        except (FileNotFoundError, ValueError) as error:
            raise RunFailed(f"{who}: no usable record ({error}); all output: {log}", last, None) from None
    return Row.of(run, record, job.wall_seconds)


class Kept(Protocol):
    """What rows of every kind have: of which run, and how it ended. A frozen dataclass of str, int and float.

    Attributes:
        flags: a run with others is another run.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def task(self) -> str: ...
    @property
    def arm(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def metric(self) -> Metric: ...
    @property
    def score(self) -> float: ...
    @property
    def weights(self) -> str: ...
    @property
    def flags(self) -> str: ...


T = TypeVar("T", bound=Kept)


def read(file: Path, kind: type[T]) -> list[T]:
    """Returns the rows measured with the flags that tasks have now; those of tasks or flags of old are passed over.

    Raises:
        ValueError: a line is not a row; says which one.
    """
    if not file.exists():
        return []
    with file.open(newline="") as lines:
        rows = [
            _parse(f"{file}:{number}", line, kind)
            for number, line in enumerate(csv.DictReader(lines), start=2)
        ]
    return [row for row in rows if row.task in TASKS and row.flags == TASKS[row.task].flags]


def append(file: Path, row: Kept) -> None:
    """Adds one line, in one write, so that what ends this process leaves whole lines."""
    is_new = not file.exists() or file.stat().st_size == 0
    with file.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, [field.name for field in fields(row)], lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(row))


def missing(tasks: Sequence[str], arms: Sequence[str], seeds: int, rows: Sequence[Kept]) -> Iterator[Run]:
    """Yields the runs that rows lack, a seed of everything before the next seed: wherever it is stopped, what is there
    is paired. Each seed begins with another arm, so that a machine that slows down weighs on all alike."""
    done = {Run(row.task, row.arm, row.seed) for row in rows}
    for seed in range(seeds):
        for task in tasks:
            turn = seed % len(arms)
            for arm in (*arms[turn:], *arms[:turn]):
                if (run := Run(task, arm, seed)) not in done:
                    yield run


_NUMBERS = {"int": int, "float": float}


def _parse(where: str, line: dict[str, str], kind: type[T]) -> T:
    try:
        values = {field.name: _NUMBERS.get(str(field.type), str)(line[field.name]) for field in fields(kind)}
        return kind(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"codec_accuracy: {where} is not a run ({error!r}); delete the line, and the run is done again"
        ) from None
