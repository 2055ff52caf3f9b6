"""Does compression="auto" find the best setting? Three models, 50 Mbit to 10 Gbit, auto beside every fixed one.

    python experiments/controller/run.py [--row lenet-50mbit]... [--budget "1.2 points"] [--seeds 3]
    python experiments/controller/run.py --quick     two rows, three arms, one seed: does it work?
    python experiments/controller/run.py --tables    measures nothing: prints README.md's tables

A row that has ended replaces its record in results.json; its page with curves is report/controller/ROW/index.html, and
what auto did and why stands in the logs beside it ("compression auto, step ..."). Of the quick form both are in
report/controller/quick/.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import verdict
from gradwire.ab.experiment import Plan, check_arms
from gradwire.controller import CANDIDATES, Budget

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from training.grid import Grid, Measured, Record, Workload  # noqa: E402

REPORT = HERE.parent.parent / "report" / "controller"
WORKERS = 2
LINKS = ("50mbit", "200mbit", "1gbit", "10gbit")
QUICK_ROWS = ("lenet-50mbit", "lenet-10gbit")


TASKS = {
    "lenet": Workload(
        "fashion_mnist/train.py",
        "--network lenet --batch-size 16 --limit 5120 --num-epochs 5",
        "--network lenet --batch-size 16 --limit 5120 --num-epochs 1",
    ),
    "resnet8": Workload(
        "fashion_mnist/train.py",
        "--network resnet8 --batch-size 16 --limit 5120 --num-epochs 5",
        "--network resnet8 --batch-size 16 --limit 2560 --num-epochs 1",
    ),
    "char_lm": Workload(
        "char_lm/train.py",
        "--network small --batch-size 8 --limit 2560 --lr 0.05 --num-epochs 5",
        "--network small --batch-size 8 --limit 1600 --lr 0.05 --num-epochs 1",
    ),
}
ROWS = {f"{task}-{link}": (task, link) for task in TASKS for link in LINKS}


def plan_of(given: argparse.Namespace, row: str) -> Plan:
    name, link = ROWS[row]
    task = TASKS[name]
    command = (sys.executable, task.path, "--kv-store", "allreduce", *task.flags(given))
    arms = (*given.arm, auto_arm(given.budget))
    return Plan(command, arms, tuple(range(given.seeds)), WORKERS, 0, link, given.report / row)


def auto_arm(budget: str) -> str:
    return f"auto:budget={budget}"


def record_of(budget: Budget, row: str, measured: Measured) -> Record:
    """Adds to what `gradwire ab` records how auto, the last arm, compares with the fixed ones."""
    outcome = measured.outcome
    return (
        {"row": row}
        | outcome.record()
        | {
            "verdict_of_auto": verdict.of(
                outcome, outcome.arms[-1].arm, verdict.admitted_by(budget)
            ).record(),
            "budget_points": budget.limit if budget.kind == "points" else None,
            "facts": measured.facts,
            "warning": measured.warning,
        }
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--row", action="append", choices=list(ROWS), help="repeatable; default: all")
    add("--arm", action="append", metavar="CODEC", help="fixed settings, repeatable; default: all candidates")
    add("--budget", default="1.2 points", help="of auto (default: %(default)s)")
    add("--seeds", type=int, metavar="N", help="0 to N-1 (default: 3; 1 with --quick)")
    add(
        "--quick", action="store_true", help="short trainings of few arms: does it work, where does it point?"
    )
    add("--json", metavar="FILE", help="write the rows' records there too; - is stdout, then nothing else is")
    add("--tables", action="store_true", help="measure nothing, print the tables")
    given = parser.parse_args()
    given.arm = given.arm or list(("none", "fp16", "nf2") if given.quick else CANDIDATES)
    given.row = given.row or list(QUICK_ROWS if given.quick else ROWS)
    given.seeds = (1 if given.quick else 3) if given.seeds is None else given.seeds
    given.report = REPORT / "quick" if given.quick else REPORT
    given.folder = given.report if given.quick else HERE
    if given.seeds < 1:
        parser.error(f"--seeds {given.seeds} was given, expected 1 or more")
    if given.arm[0] != "none":
        parser.error(f"--arm {given.arm[0]} was given first, expected none: accuracy is compared with its")
    try:
        given.limit = Budget.parse(given.budget)
        check_arms(given.arm)
    except ValueError as error:
        parser.error(str(error))
    return given


def main() -> int:
    given = parse_arguments()

    def tables(known: list[Record]) -> str:
        return verdict.markdown(known) if known else ""

    grid = Grid(
        "controller", "row", list(ROWS), partial(plan_of, given), partial(record_of, given.limit), tables
    )
    return grid.run([] if given.tables else given.row, given.folder, given.json)


if __name__ == "__main__":
    sys.exit(main())
