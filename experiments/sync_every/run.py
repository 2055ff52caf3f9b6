"""What do local steps cost and save on slow links? A character transformer on four workers behind links of 10 and 100
Mbit: DistributedDataParallel with its fp16 hook and 2bit every step, beside LocalStepOptimizer (DiLoCo), the same
seeds, in turns.

    python experiments/sync_every/run.py [--link 10mbit]... [--arm "DDP fp16" --arm "int4 sync_every=50"]... [--seeds 5]
    python experiments/sync_every/run.py --quick     2 seeds of 3 arms in a shorter training
    python experiments/sync_every/run.py --tables    measures nothing: prints README.md's tables

A link that has ended replaces its record in results.json; its page with curves is report/sync_every/LINK/index.html.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import figures
from arm import DDP, codec_and_flags
from gradwire.ab import Plan, RunFailed, check_arms, network, run_plan
from gradwire.ab_command import ProgressView, show, show_failure
from gradwire.console import say
from gradwire.doctor import gradwire_version, machine_description
from gradwire.json_option import write_json
from gradwire.outcome import summarise
from gradwire.report import write_page
from rich.console import Console

HERE = Path(__file__).resolve().parent
REPORT = HERE.parent.parent / "report" / "sync_every"
WORKERS = 4
LINKS = ("10mbit", "100mbit")
ARMS = (
    DDP,
    "2bit",
    "int4 sync_every=20",
    "int4 sync_every=50",
    "2bit sync_every=50",
    "int4 sync_every=50 fragments=2 merge_after=10",
)
QUICK_ARMS = (DDP, "2bit", "int4 sync_every=50")
WHOLE = "--network small --batch-size 8 --limit 3200 --num-epochs 4"
QUICK = "--network small --batch-size 8 --limit 1600 --num-epochs 2"


def plan_of(link: str, given: argparse.Namespace) -> Plan:
    flags = (QUICK if given.quick else WHOLE).split()
    command = (sys.executable, str(HERE / "arm.py"), *flags)
    return Plan(command, tuple(given.arm), tuple(range(given.seeds)), WORKERS, 0, link, given.report / link)


def measure(link: str, plan: Plan, console: Console) -> dict[str, Any]:
    """Runs all arms behind links of one rate, writes their page and returns the record.

    Raises:
        RunFailed: a run failed or was stopped; nothing is left running.
    """
    load, began = os.getloadavg()[0], time.monotonic()
    with network(plan) as conditions:
        warning = None
        if conditions.reason is not None:
            warning = f"the link is NOT shaped to {link}, so times say nothing: {conditions.reason}"
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
    return figures.record_of(link, outcome) | {"facts": facts}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--link", action="append", choices=list(LINKS), help="repeatable; default: all")
    add("--arm", action="append", metavar="ARM", help="repeatable, the first is compared with; default: all")
    add("--seeds", type=int, metavar="N", help="0 to N-1 (default: 5; 2 with --quick)")
    add("--quick", action="store_true", help="a shorter training, fewer arms: does it work?")
    add(
        "--folder",
        type=Path,
        help="of results.json (default: beside this script; with --quick that of pages)",
    )
    add("--report", type=Path, help="of pages and logs (default: report/sync_every, or quick/ in it)")
    add("--json", metavar="FILE", help="write the records there too; - is stdout, and then nothing else is")
    add("--tables", action="store_true", help="measure nothing, print the tables")
    given = parser.parse_args()
    given.arm = given.arm or list(QUICK_ARMS if given.quick else ARMS)
    given.seeds = (2 if given.quick else 5) if given.seeds is None else given.seeds
    given.report = given.report or (REPORT / "quick" if given.quick else REPORT)
    given.folder = given.folder or (given.report if given.quick else HERE)
    if given.seeds < 1:
        parser.error(f"--seeds {given.seeds} was given, expected 1 or more")
    try:
        check_arms([codec for arm in given.arm if (codec := codec_and_flags(arm)[0]) is not None])
    except ValueError as error:
        parser.error(f"{error}; or {DDP}")
    return given


def main() -> int:
    given = parse_arguments()
    console = Console(stderr=given.json == "-")
    given.folder.mkdir(parents=True, exist_ok=True)
    file = given.folder / "results.json"
    results = {row["link"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    for link in [] if given.tables else given.link or LINKS:
        console.print(f"\n{link}", style="bold")
        try:
            results[link] = measure(link, plan_of(link, given), console)
        except RunFailed as failure:
            show_failure(failure, console)
            say(f"sync_every: {link}: {failure}")
            return failure.exit_code
        file.write_text(json.dumps([results[name] for name in LINKS if name in results], indent=1) + "\n")
    known = [results[link] for link in LINKS if link in results]
    if given.json != "-":
        print("\n\n".join(map(figures.markdown, known)))
    write_json(known, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
