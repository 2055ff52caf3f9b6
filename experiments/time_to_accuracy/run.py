"""How soon is a target reached? Accuracy of resnet8 with SGD, and loss of a character transformer with SGD and with
AdamW, at 100 Mbit and at 1 Gbit:
DistributedDataParallel on Gloo with PyTorch's own hooks beside gradwire's codecs, the same seeds, in turns.

    python experiments/time_to_accuracy/run.py [--row resnet8-100mbit]... [--arm DDP --arm 2bit]... [--seeds 5]
    python experiments/time_to_accuracy/run.py --quick     2 seeds of fewer arms, shorter: a quarter of an hour
    python experiments/time_to_accuracy/run.py --tables    measures nothing: prints README.md's tables

A row that has ended replaces its record in results.json; its page with curves is
report/time_to_accuracy/ROW/index.html.
Of the quick form both are in report/time_to_accuracy/quick/.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import verdict
from arm import PEERS
from gradwire.ab.experiment import Plan, check_arms
from gradwire.ab.summary import Outcome

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from training.grid import Grid, Measured, Record, Workload  # noqa: E402

REPORT = HERE.parent.parent / "report" / "time_to_accuracy"
WORKERS = 2
LINKS = ("100mbit", "1gbit")
ADAMW = "--optimizer adamw --lr 0.002 --wd 0.01"


TASKS = {
    "resnet8": Workload(
        "fashion_mnist/train.py",
        "--network resnet8 --batch-size 16 --limit 3200 --num-epochs 5",
        "--network resnet8 --batch-size 16 --limit 1280 --num-epochs 2",
    ),
    "char_lm": Workload(
        "char_lm/train.py",
        "--network small --batch-size 8 --limit 1200 --num-epochs 5",
        "--network small --batch-size 8 --limit 320 --num-epochs 2",
    ),
    "char_lm_adamw": Workload(
        "char_lm/train.py",
        f"--network small --batch-size 8 --limit 1200 --num-epochs 5 {ADAMW} --warmup-steps 20",
        f"--network small --batch-size 8 --limit 320 --num-epochs 2 {ADAMW} --warmup-steps 5",
    ),
}
# Of each task, the whole form's and the quick form's.
OF_SGD = (
    (*PEERS, "fp16", "int8", "2bit", "2bit:reply=2bit", "1bit", "topk"),
    (*PEERS, "fp16", "int8", "2bit"),
)
OF_ADAMW = ((*PEERS, "fp16", "int8", "nf4", "nf2", "2bit"), (*PEERS, "fp16", "int8", "nf4"))
ARMS = {"resnet8": OF_SGD, "char_lm": OF_SGD, "char_lm_adamw": OF_ADAMW}
ROWS = {f"{task}-{link}": (task, link) for task in TASKS for link in LINKS}


def arms_of(given: argparse.Namespace, task: str) -> tuple[str, ...]:
    """Returns those that were asked for, else the task's."""
    whole, quick = ARMS[task]
    return tuple(given.arm or (quick if given.quick else whole))


def plan_of(given: argparse.Namespace, row: str) -> Plan:
    name, link = ROWS[row]
    task = TASKS[name]
    command = (sys.executable, str(HERE / "arm.py"), task.path, *task.flags(given))
    return Plan(
        command, arms_of(given, name), tuple(range(given.seeds)), WORKERS, 0, link, given.report / row
    )


def record_of(row: str, outcome: Outcome) -> Record:
    """Adds to what `gradwire ab` records how an arm's times to the target compare with the first arm's."""
    record = {"row": row} | outcome.record()
    for arm, summary in zip(record["arms"], outcome.arms, strict=True):
        ratio = verdict.time_ratio(summary.runs, outcome.arms[0].runs, outcome.target)
        arm["time_ratio"] = None if ratio is None else asdict(ratio)
        arm["reached"] = verdict.reached(summary.runs, outcome.target)
    return record


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--row", action="append", choices=list(ROWS), help="repeatable; default: all")
    add(
        "--arm",
        action="append",
        metavar="ARM",
        help="repeatable, the first is compared with; default: the row's own",
    )
    add("--seeds", type=int, metavar="N", help="0 to N-1 (default: 5; 2 with --quick)")
    add(
        "--quick",
        action="store_true",
        help="a shorter training, fewer arms: does it work, and where does it point?",
    )
    add(
        "--folder",
        type=Path,
        help="of results.json (default: beside this script; with --quick that of pages)",
    )
    add("--report", type=Path, help="of pages and logs (default: report/time_to_accuracy, or quick/ in it)")
    add(
        "--json",
        metavar="FILE",
        help="write the rows' records there too; - is stdout, and then nothing else is",
    )
    add("--tables", action="store_true", help="measure nothing, print the tables")
    given = parser.parse_args()
    given.seeds = (2 if given.quick else 5) if given.seeds is None else given.seeds
    given.report = given.report or (REPORT / "quick" if given.quick else REPORT)
    given.folder = given.folder or (given.report if given.quick else HERE)
    if given.seeds < 1:
        parser.error(f"--seeds {given.seeds} was given, expected 1 or more")
    try:
        check_arms([arm for arm in given.arm or [] if arm not in PEERS])
    except ValueError as error:
        parser.error(f"{error}; or one of {', '.join(PEERS)}")
    return given


def main() -> int:
    given = parse_arguments()

    def record(row: str, measured: Measured) -> Record:
        return record_of(row, measured.outcome) | {"facts": measured.facts}

    def tables(known: list[Record]) -> str:
        return "\n\n".join(map(verdict.markdown, known))

    grid = Grid("time_to_accuracy", "row", list(ROWS), partial(plan_of, given), record, tables)
    return grid.run([] if given.tables else given.row or list(ROWS), given.folder, given.json)


if __name__ == "__main__":
    sys.exit(main())
