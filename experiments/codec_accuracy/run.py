"""What does every codec cost in accuracy? All codecs, 4 workers, the same seeds, one run after the other.

    python experiments/codec_accuracy/run.py [--task lenet]... [--arm none --arm 2bit]... [--seeds 5] [--minutes M]
    python experiments/codec_accuracy/run.py --tables      measures nothing: fills README.md, draws results.svg

Every run is kept in results.csv as it ends, and is not done again: stopped or cut short, the same command goes on
where it was. A run's output is in report/codec_accuracy/TASK/.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import accuracy_table
import readme
from arms import check, every_arm
from runs import TASKS, Row, Run, RunFailed, append, carry_out, missing, read

HERE = Path(__file__).resolve().parent


def measure(to_do: Sequence[Run], file: Path, minutes: float | None) -> list[Run]:
    """Does the runs, of which none starts after minutes; returns those that failed.

    Raises:
        RunFailed: a signal stopped one.
    """
    began = time.monotonic()
    failed = []
    for number, run in enumerate(to_do, start=1):
        spent = time.monotonic() - began
        if minutes is not None and spent > 60 * minutes:
            say(
                f"{minutes:g} minutes are over, {len(to_do) - number + 1} runs are left: the same command goes on"
            )
            break
        try:
            row = carry_out(run)
        except RunFailed as error:
            say(*(f"  | {line}" for line in error.last_lines), str(error))
            if error.interrupted is not None:
                raise
            failed.append(run)
            continue
        append(file, row)
        left = (time.monotonic() - began) / number * (len(to_do) - number)
        say(f"{number}/{len(to_do)} {describe(row)}; {left / 60:.0f} min left")
    return failed


def describe(row: Row) -> str:
    score = f"loss {row.score:.4f}" if row.metric == "loss" else f"accuracy {100 * row.score:.2f} %"
    return f"{row.task} {row.arm} seed {row.seed}: {score}, {row.wall_seconds:.1f} s"


def say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def write_tables(folder: Path) -> None:
    """Prints the tables; fills README.md and draws from what was measured in its folder."""
    rows = read(folder / "results.csv")
    if not rows:
        return
    text = "\n\n".join(
        accuracy_table.markdown(task, own) for task, own in accuracy_table.by_task(rows).items()
    )
    print(text)
    (folder / "results.svg").write_text(accuracy_table.draw(rows), encoding="utf-8")
    if folder == HERE:
        readme.fill("accuracy", text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--task", action="append", choices=list(TASKS), help="repeatable; default: all")
    add("--arm", action="append", metavar="CODEC", help="repeatable; default: every codec, and PowerSGD")
    add("--seeds", type=int, default=5, metavar="N", help="0 to N-1 (default: %(default)s)")
    add("--minutes", type=float, metavar="M", help="start no run after so long; default: all are done")
    add("--folder", type=Path, default=HERE, help="where results.csv is (default: beside this script)")
    add("--tables", action="store_true", help="measure nothing: print tables, fill README.md, draw")
    given = parser.parse_args()
    if given.seeds < 1:
        parser.error(f"--seeds {given.seeds} was given, expected 1 or more")
    try:
        check(given.arm or [])
    except ValueError as error:
        parser.error(str(error))
    return given


def main() -> int:
    given = parse_arguments()
    folder = given.folder.resolve()
    failed: list[Run] = []
    if not given.tables:
        file = folder / "results.csv"
        to_do = list(missing(given.task or list(TASKS), given.arm or every_arm(), given.seeds, read(file)))
        try:
            failed = measure(to_do, file, given.minutes)
        except RunFailed as error:
            return 128 + (error.interrupted or 0)
    write_tables(folder)
    for run in failed:
        say(f"FAILED: {run.task} {run.arm} seed {run.seed}: {run.log()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
