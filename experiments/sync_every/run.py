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
import sys
from functools import partial
from pathlib import Path

import figures
from arm import DDP, codec_and_flags
from gradwire.ab.experiment import Plan, check_arms

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from training.grid import Grid, Measured, Record, Workload  # noqa: E402

REPORT = HERE.parent.parent / "report" / "sync_every"
WORKERS = 4
LINKS = ("10mbit", "100mbit")
ARMS = (
    DDP,
    "2bit",
    "int4 sync_every=50",
    "int4 sync_every=50 outer_lr=1 outer_momentum=0",
    "int4 sync_every=100 outer_lr=1 outer_momentum=0 num_epochs=8",
    "int4 sync_every=100 outer_lr=1 outer_momentum=0 num_epochs=12",
)
QUICK_ARMS = (DDP, "2bit", "int4 sync_every=50")
TRANSFORMER = Workload(
    "sync_every/arm.py",
    "--network small --batch-size 8 --limit 3200 --lr 0.05 --num-epochs 4",
    "--network small --batch-size 8 --limit 1600 --lr 0.05 --num-epochs 2",
)


def plan_of(given: argparse.Namespace, link: str) -> Plan:
    command = (sys.executable, TRANSFORMER.path, *TRANSFORMER.flags(given))
    return Plan(command, tuple(given.arm), tuple(range(given.seeds)), WORKERS, 0, link, given.report / link)


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

    def record(link: str, measured: Measured) -> Record:
        return figures.record_of(link, measured.outcome) | {"facts": measured.facts}

    def tables(known: list[Record]) -> str:
        return "\n\n".join(map(figures.markdown, known))

    grid = Grid("sync_every", "link", LINKS, partial(plan_of, given), record, tables)
    return grid.run([] if given.tables else given.link or LINKS, given.folder, given.json)


if __name__ == "__main__":
    sys.exit(main())
