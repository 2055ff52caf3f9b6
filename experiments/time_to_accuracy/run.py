"""How soon is a target reached? Accuracy of resnet8 and loss of a character transformer, at 100 Mbit and at 1 Gbit:
DistributedDataParallel on Gloo with PyTorch's own hooks beside gradwire's codecs, the same seeds, in turns.

    python experiments/time_to_accuracy/run.py [--row resnet8-100mbit]... [--arm DDP --arm 2bit]... [--seeds 5]
    python experiments/time_to_accuracy/run.py --quick     2 seeds of 6 arms in a shorter training, about 10 minutes
    python experiments/time_to_accuracy/run.py --tables    measures nothing: prints README.md's tables

A row that has ended replaces its record in results.json; its page with curves is
report/time_to_accuracy/ROW/index.html.
Of the quick form both are in report/time_to_accuracy/quick/.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import verdict
from arm import PEERS
from gradwire.ab import Plan, Run, RunFailed, check_arms, network, run_plan
from gradwire.ab_command import ProgressView, show, show_failure
from gradwire.console import say
from gradwire.doctor import gradwire_version, machine_description
from gradwire.json_option import write_json
from gradwire.outcome import Outcome, summarise
from gradwire.report import write_page
from rich.console import Console

HERE = Path(__file__).resolve().parent
EXPERIMENTS = HERE.parent
REPORT = EXPERIMENTS.parent / "report" / "time_to_accuracy"
WORKERS = 2
ARMS = (*PEERS, "fp16", "int8", "2bit", "2bit:reply=2bit", "1bit", "topk")
QUICK_ARMS = (*PEERS, "fp16", "int8", "2bit")
LINKS = ("100mbit", "1gbit")


@dataclass(frozen=True)
class Task:
    """What is trained. script: below experiments/. whole, quick: flags, the same for all arms."""

    script: str
    whole: str
    quick: str


TASKS = {
    "resnet8": Task(
        "fashion_mnist/train.py",
        "--network resnet8 --batch-size 16 --limit 6400 --num-epochs 5",
        "--network resnet8 --batch-size 16 --limit 1280 --num-epochs 2",
    ),
    "char_lm": Task(
        "char_lm/train.py",
        "--network small --batch-size 8 --limit 2400 --num-epochs 5",
        "--network small --batch-size 8 --limit 320 --num-epochs 2",
    ),
}
ROWS = {f"{task}-{link}": (task, link) for task in TASKS for link in LINKS}


def plan_of(row: str, given: argparse.Namespace) -> Plan:
    name, link = ROWS[row]
    task = TASKS[name]
    flags = (task.quick if given.quick else task.whole).split()
    command = (sys.executable, str(HERE / "arm.py"), str(EXPERIMENTS / task.script), *flags)
    return Plan(command, tuple(given.arm), tuple(range(given.seeds)), WORKERS, 0, link, given.report / row)


def measure(row: str, plan: Plan, console: Console) -> dict[str, Any]:
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
    loads = f"{load:.1f} before, {os.getloadavg()[0]:.1f} after"
    facts = {
        "command": shlex.join(["python", *sys.argv]),
        "each worker": shlex.join(["python", *(Path(w).name if "/" in w else w for w in plan.command[1:])]),
        "workers": f"{plan.workers}, no servers",
        "link": conditions.link,
        "seeds": ", ".join(map(str, plan.seeds)) + "; arms interleaved, order rotated from seed to seed",
        "machine": ", ".join(f"{name} {value}" for name, value in machine_description().items()),
        "load of the machine": loads,
        "took": f"{time.monotonic() - began:.0f} s",
        "gradwire": gradwire_version(),
    }
    show(outcome, write_page(plan.report, outcome, facts, warning), console)
    return record_of(row, outcome, runs) | {"facts": facts}


def record_of(row: str, outcome: Outcome, runs: list[Run]) -> dict[str, Any]:
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
    add("--arm", action="append", metavar="ARM", help="repeatable, the first is compared with; default: all")
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
    given.arm = given.arm or list(QUICK_ARMS if given.quick else ARMS)
    given.seeds = (2 if given.quick else 5) if given.seeds is None else given.seeds
    given.report = given.report or (REPORT / "quick" if given.quick else REPORT)
    given.folder = given.folder or (given.report if given.quick else HERE)
    if given.seeds < 1:
        parser.error(f"--seeds {given.seeds} was given, expected 1 or more")
    try:
        check_arms([arm for arm in given.arm if arm not in PEERS])
    except ValueError as error:
        parser.error(f"{error}; or one of {', '.join(PEERS)}")
    return given


def main() -> int:
    given = parse_arguments()
    console = Console(stderr=given.json == "-")
    given.folder.mkdir(parents=True, exist_ok=True)
    file = given.folder / "results.json"
    results = {row["row"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    for row in [] if given.tables else given.row or ROWS:
        console.print(f"\n{row}", style="bold")
        try:
            results[row] = measure(row, plan_of(row, given), console)
        except RunFailed as failure:
            show_failure(failure, console)
            say(f"time_to_accuracy: {row}: {failure}")
            return failure.exit_code
        file.write_text(json.dumps([results[name] for name in ROWS if name in results], indent=1) + "\n")
    known = [results[row] for row in ROWS if row in results]
    if given.json != "-":
        print("\n\n".join(map(verdict.markdown, known)))
    write_json(known, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
