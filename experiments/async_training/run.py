"""Does it pay not to wait? LeNet on Fashion-MNIST, 4 workers of which one takes 3 times as long for its steps: time
to a target accuracy with dist_sync, and with dist_async at several staleness bounds, the same seeds, in turns.

    python experiments/async_training/run.py [--seeds 3] [--arm dist_sync --arm "dist_async, bound 4"]...
    python experiments/async_training/run.py --quick      1 seed of a shorter training, into report/async_training
    python experiments/async_training/run.py --tables     measures nothing: prints the table of results.json

Writes results.json, accuracy.svg and staleness.svg. The first arm that is given is compared with.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import figures
from gradwire.launch.console import say
from gradwire.launch.supervisor import run_job
from gradwire.terminal.machine import gradwire_version, machine_description

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parent / "fashion_mnist" / "train.py"
REPORT = HERE.parent.parent / "report" / "async_training"
WORKERS, SERVERS, TIMEOUT = 4, 2, 1800.0
SLOW = "3:3"  # rank and factor
WHOLE = "--limit 12800 --num-epochs 8 --batch-size 64"
QUICK = "--limit 2560 --num-epochs 3 --batch-size 64"
SHARED = (
    f"--network lenet --update-on-kvstore --lr-schedule constant --lr 0.02 --slow-worker {SLOW} --threads 1"
)


@dataclass(frozen=True)
class Arm:
    """A store. bound: GRADWIRE_STALENESS_BOUND; empty: none."""

    store: str
    bound: str = ""


ARMS = {
    "dist_sync": Arm("dist_sync"),
    "dist_async, bound 0": Arm("dist_async", "0"),
    "dist_async, bound 4": Arm("dist_async", "4"),
    "dist_async": Arm("dist_async"),
}


class Failed(Exception):
    """A job did not end well; says which, and its last lines."""


def train(name: str, seed: int, flags: str) -> dict[str, Any]:
    """Runs one job and returns what rank 0 recorded, with the arm, the seed and how long it took.

    Raises: Failed.
    """
    arm, lines = ARMS[name], []
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        command = [sys.executable, str(SCRIPT), *SHARED.split(), *flags.split(), "--seed", str(seed)]
        command += ["--kv-store", arm.store, "--json", str(record)]
        began = time.monotonic()
        ended = run_job(
            command,
            WORKERS,
            SERVERS,
            env={"GRADWIRE_STALENESS_BOUND": arm.bound, "GRADWIRE_COMPRESSION": "", "OMP_NUM_THREADS": "1"},
            output=lambda line: lines.append(f"{line.role} {line.rank}: {line.text}"),
            report=lines.append,
            timeout=TIMEOUT,
        )
        if ended.exit_code != 0:
            raise Failed(f"{name}, seed {seed}: ended with {ended.exit_code}\n" + "\n".join(lines[-20:]))
        found: dict[str, Any] = json.loads(record.read_text())
    return found | {"arm": name, "seed": seed, "wall_seconds": time.monotonic() - began}


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Runs all arms seed by seed, in an order that turns from seed to seed.

    Raises: Failed.
    """
    load, runs = os.getloadavg()[0], []
    for seed in range(given.seeds):
        turn = seed % len(given.arm)
        for name in [*given.arm[turn:], *given.arm[:turn]]:
            runs.append(train(name, seed, QUICK if given.quick else WHOLE))
            print(f"seed {seed}  {name:22s}{figures.describe(runs[-1])}", flush=True)
    return {
        "facts": {
            "command": shlex.join(["python", *sys.argv]),
            "each worker": f"train.py {SHARED} {QUICK if given.quick else WHOLE}",
            "job": f"{WORKERS} workers, {SERVERS} servers, loopback",
            "machine": ", ".join(f"{name} {value}" for name, value in machine_description().items()),
            "load of the machine": f"{load:.1f} before, {os.getloadavg()[0]:.1f} after",
            "gradwire": gradwire_version(),
        },
        "arms": given.arm,
        "runs": [{field: run.get(field) for field in figures.FIELDS} for run in runs],
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--arm", action="append", choices=list(ARMS), help="repeatable; default: all")
    add("--seeds", type=int, metavar="N", help="0 to N-1 (default: 3; 1 with --quick)")
    add("--quick", action="store_true", help="a shorter training: does it work?")
    add("--tables", action="store_true", help="measure nothing, print the table")
    given = parser.parse_args()
    given.arm = given.arm or list(ARMS)
    given.seeds = (1 if given.quick else 3) if given.seeds is None else given.seeds
    if given.seeds < 1:
        parser.error(f"--seeds {given.seeds} was given, expected 1 or more")
    return given


def main() -> int:
    given = parse_arguments()
    folder = REPORT if given.quick else HERE
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "results.json"
    if not given.tables:
        try:
            results = measure(given)
        except Failed as failure:
            say(f"async_training: {failure}")
            return 1
        file.write_text(json.dumps(results, indent=1) + "\n")
        (folder / "accuracy.svg").write_text(figures.accuracy(results), encoding="utf-8")
        if any(run["staleness_per_worker"] for run in results["runs"]):
            (folder / "staleness.svg").write_text(figures.staleness(results), encoding="utf-8")
    if not file.exists():
        say(f"async_training: {file} is not there; measure first, without --tables")
        return 1
    print(figures.table(json.loads(file.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
