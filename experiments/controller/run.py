"""Does compression="auto" find the best setting? Three models, 50 Mbit to 10 Gbit, auto beside every fixed one.

    python experiments/controller/run.py [--row lenet-50mbit]... [--budget "1 points"] [--seeds 3]
    python experiments/controller/run.py --quick     two rows, three arms, one seed: does it work?
    python experiments/controller/run.py --tables    measures nothing: prints README.md's tables

A row that has ended replaces its record in results.json; its page with curves is report/controller/ROW/index.html, and
what auto did and why stands in the logs beside it ("compression auto, step ..."). Of the quick form both are in
report/controller/quick/.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import verdict
from gradwire.ab import Plan, RunFailed, check_arms, network, run_plan
from gradwire.ab_command import ProgressView, show, show_failure
from gradwire.console import say
from gradwire.controller import CANDIDATES, Budget
from gradwire.doctor import gradwire_version, machine_description
from gradwire.json_option import write_json
from gradwire.outcome import summarise
from gradwire.report import write_page
from rich.console import Console

HERE = Path(__file__).resolve().parent
EXPERIMENTS = HERE.parent
REPORT = EXPERIMENTS.parent / "report" / "controller"
WORKERS = 2
LINKS = ("50mbit", "200mbit", "1gbit", "10gbit")
QUICK_ROWS = ("lenet-50mbit", "lenet-10gbit")


@dataclass(frozen=True)
class Task:
    """What is trained. script: below experiments/. whole, quick: flags, the same for all arms."""

    script: str
    whole: str
    quick: str


TASKS = {
    "lenet": Task(
        "fashion_mnist/train.py",
        "--network lenet --batch-size 16 --limit 25600 --num-epochs 4",
        "--network lenet --batch-size 16 --limit 6400 --num-epochs 1",
    ),
    "resnet8": Task(
        "fashion_mnist/train.py",
        "--network resnet8 --batch-size 16 --limit 12800 --num-epochs 5",
        "--network resnet8 --batch-size 16 --limit 3200 --num-epochs 1",
    ),
    "char_lm": Task(
        "char_lm/train.py",
        "--network small --batch-size 8 --limit 4800 --num-epochs 5",
        "--network small --batch-size 8 --limit 1600 --num-epochs 1",
    ),
}
ROWS = {f"{task}-{link}": (task, link) for task in TASKS for link in LINKS}


def plan_of(row: str, given: argparse.Namespace) -> Plan:
    name, link = ROWS[row]
    task = TASKS[name]
    flags = (task.quick if given.quick else task.whole).split()
    command = (sys.executable, str(EXPERIMENTS / task.script), "--kv-store", "allreduce", *flags)
    arms = (*given.arm, auto_arm(given.budget))
    return Plan(command, arms, tuple(range(given.seeds)), WORKERS, 0, link, given.report / row)


def auto_arm(budget: str) -> str:
    return f"auto:budget={budget}"


def measure(row: str, plan: Plan, budget: Budget, console: Console) -> dict[str, Any]:
    """Runs a row, writes its page and returns its record.

    Raises:
        RunFailed: a run failed or was stopped; nothing is left running.
    """
    load, began = os.getloadavg()[0], time.monotonic()
    with network(plan) as conditions:
        warning = None
        if conditions.reason is not None:
            warning = f"the link is NOT shaped to {plan.bandwidth}, so times say nothing: {conditions.reason}"
            console.print(f"NOTE: {warning}", style="bold yellow")
        with ProgressView(console, len(plan.arms) * len(plan.seeds)) as view:
            runs = run_plan(plan, conditions, view)
    outcome = summarise(runs, plan.arms, None, conditions.link)
    facts = {
        "command": shlex.join(["python", *sys.argv]),
        "each worker": shlex.join(["python", *(Path(w).name if "/" in w else w for w in plan.command[1:])]),
        "workers": f"{plan.workers}, no servers",
        "link": conditions.link,
        "seeds": ", ".join(map(str, plan.seeds)) + "; arms interleaved, order rotated from seed to seed",
        "machine": ", ".join(f"{name} {value}" for name, value in machine_description().items()),
        "load of the machine": f"{load:.1f} before, {os.getloadavg()[0]:.1f} after",
        "took": f"{time.monotonic() - began:.0f} s",
        "gradwire": gradwire_version(),
    }
    show(outcome, write_page(plan.report, outcome, facts, warning), console)
    own = verdict.of(outcome, plan.arms[-1]).record()
    points = budget.limit if budget.kind == "points" else None
    return (
        {"row": row}
        | outcome.record()
        | {"verdict_of_auto": own, "budget_points": points, "facts": facts, "warning": warning}
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--row", action="append", choices=list(ROWS), help="repeatable; default: all")
    add("--arm", action="append", metavar="CODEC", help="fixed settings, repeatable; default: all candidates")
    add("--budget", default="1 points", help="of auto (default: %(default)s)")
    add("--seeds", type=int, metavar="N", help="0 to N-1 (default: 3; 1 with --quick)")
    add(
        "--quick", action="store_true", help="short trainings of few arms: does it work, where does it point?"
    )
    add("--json", metavar="FILE", help="write the rows' records there too; - is stdout, then nothing else is")
    add("--tables", action="store_true", help="measure nothing, print the tables")
    given = parser.parse_args()
    given.arm = given.arm or list(("none", "fp16", "2bit") if given.quick else CANDIDATES)
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
    console = Console(stderr=given.json == "-")
    given.folder.mkdir(parents=True, exist_ok=True)
    file = given.folder / "results.json"
    results = {row["row"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    for row in [] if given.tables else given.row:
        console.print(f"\n{row}", style="bold")
        try:
            results[row] = measure(row, plan_of(row, given), given.limit, console)
        except RunFailed as failure:
            show_failure(failure, console)
            say(f"controller: {row}: {failure}")
            return failure.exit_code
        file.write_text(json.dumps([results[name] for name in ROWS if name in results], indent=1) + "\n")
    known = [results[row] for row in ROWS if row in results]
    if given.json != "-" and known:
        print(verdict.markdown(known))
    write_json(known, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
