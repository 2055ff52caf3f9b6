"""AdamW with every codec, and with recipes around one: see README.md.

    python experiments/adamw/run.py               # every arm of the page, then its tables and charts
    python experiments/adamw/run.py --tables      # the tables and charts only
    python experiments/adamw/run.py --task char_lm_micro --arm "2bit;warm_up=40" --seeds 3

Every run is a line of results.csv as soon as it ends, and is not repeated. The same command goes on.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

RESULTS = Path(__file__).with_name("results.csv")


@dataclass(frozen=True)
class Run:
    """Which run, of all there are to do."""

    task: str
    arm: str
    seed: int


@dataclass(frozen=True)
class Row:
    """One run as it went: a line of results.csv."""

    task: str
    arm: str
    seed: int
    loss: float
    accuracy: float
    bits: float  # per element of compressed tensors and step, sent and received
    curve: str  # training losses, the mean of each 40 steps, with spaces between
    flags: str  # a run with others is another run
    cpu_seconds: float


def carry_out(run: Run) -> Row:
    """Trains on one thread of this process."""
    import tasks
    from adamw_simulation import train
    from recipes import Recipe

    task = tasks.load(run.task)
    began = time.process_time()
    trained = train(Recipe.parse(run.arm), run.seed, task)
    return Row(
        run.task,
        run.arm,
        run.seed,
        round(trained.loss, 5),
        round(trained.accuracy, 4),
        round(trained.bits, 3),
        " ".join(f"{loss:.4f}" for loss in trained.curve),
        task.flags,
        round(time.process_time() - began, 1),
    )


def read(file: Path = RESULTS) -> list[Row]:
    """Returns the runs of a file, none where there is no file."""
    if not file.exists():
        return []
    kinds = {"seed": int, "loss": float, "accuracy": float, "bits": float, "cpu_seconds": float}
    with file.open(newline="", encoding="utf-8") as lines:
        return [
            Row(**{name: kinds.get(name, str)(value) for name, value in line.items()})
            for line in csv.DictReader(lines)
        ]


def append(row: Row, file: Path = RESULTS) -> None:
    """Adds a line, also where other processes add theirs."""
    with file.open("a", newline="", encoding="utf-8") as lines:
        fcntl.flock(lines, fcntl.LOCK_EX)
        writer = csv.DictWriter(lines, [field.name for field in fields(Row)], lineterminator="\n")
        if lines.tell() == 0:
            writer.writeheader()
        writer.writerow(asdict(row))
        lines.flush()


def measure(runs: Iterable[Run], minutes: float | None, share: tuple[int, int], file: Path = RESULTS) -> int:
    """Does the runs that are not in the file.

    Args:
        minutes: no run starts later; None: all are done.
        share: (i, n): only every n-th run, from the i-th on, so that n processes do all.

    Returns: how many were not started.
    """
    began, left = time.monotonic(), 0
    for number, run in enumerate(runs):
        if number % share[1] != share[0] % share[1]:
            continue
        if any((row.task, row.arm, row.seed) == (run.task, run.arm, run.seed) for row in read(file)):
            continue
        if minutes is not None and time.monotonic() - began > 60 * minutes:
            left += 1
            continue
        row = carry_out(run)
        append(row, file)
        print(
            f"{row.task} {row.arm} seed {row.seed}: loss {row.loss:.4f}, {row.bits:.2f} bits, "
            f"{row.cpu_seconds} s of one processor",
            flush=True,
        )
    return left


def planned(given: argparse.Namespace) -> Sequence[Run]:
    """Returns what the flags ask for, seed 0 of everything before seed 1 of anything."""
    import arms

    if given.arm:
        tasks = given.task or ["char_lm_micro"]
        seeds = range(given.seeds or 1)
        return [Run(task, arm, seed) for seed in seeds for task in tasks for arm in given.arm]
    every = arms.planned(given.seeds)
    return [Run(*each) for each in every if not given.task or each[0] in given.task]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--task", action="append", help="only this task; may be repeated (default: those of the page)")
    add("--arm", action="append", help="only this arm; may be repeated (default: those of the page)")
    add("--seeds", type=int, help="how many (default: 1 for --arm, else as the page)")
    add("--minutes", type=float, help="start no run after so many minutes (default: all runs)")
    add(
        "--share",
        default="0/1",
        help="I/N: the I-th of N processes that share the runs (default: %(default)s)",
    )
    add("--tables", action="store_true", help="measure nothing; fill in the tables of README.md")
    given = parser.parse_args(arguments)
    if not given.tables:
        index, _, count = given.share.partition("/")
        left = measure(planned(given), given.minutes, (int(index), int(count)))
        if left:
            print(f"{left} runs are left: run the same command again", file=sys.stderr)
            return 0
    if given.tables or not given.arm:
        import page

        page.fill(read())
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main())
