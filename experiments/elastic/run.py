"""LeNet on Fashion-MNIST, 4 workers: one is killed at 30 % of the training and one added at 60 %, or neither.

    python experiments/elastic/run.py [--seeds 5]
    python experiments/elastic/run.py --quick      1 seed of a shorter training, into report/elastic
    python experiments/elastic/run.py --tables     measures nothing: prints what results.csv says

Goes on behind the rows that results.csv has already.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import threading
from pathlib import Path

from gradwire.launch.child import Line
from gradwire.launch.console import say
from gradwire.launch.supervisor import JobResult, run_job

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parent / "fashion_mnist" / "train.py"
REPORT = HERE.parent.parent / "report" / "elastic"
FIELDS = ("arm", "seed", "accuracy", "steps", "generations", "lost")
# What is different in each: whether a worker is killed and one added, and flags.
ARMS = {
    "undisturbed": (False, ""),
    "disturbed": (True, ""),
    "disturbed, rate kept": (True, "--no-scale-lr"),
}
WORKERS, TIMEOUT = 4, 3600.0
KILL_AT, ADD_AT = 30, 60  # per cent
WHOLE = "--limit 12800 --num-epochs 8 --batch-size 64"
QUICK = "--limit 5120 --num-epochs 3 --batch-size 16"
SHARED = "--network lenet --kv-store allreduce --gc-type 2bit --on-failure continue --threads 1"
SETTINGS = {"GRADWIRE_COMPRESSION": "", "GRADWIRE_ON_FAILURE": "continue", "OMP_NUM_THREADS": "1"}


class Failed(Exception):
    """A job did not end well; says which, and its last lines."""


class Disturbance:
    """Hears what a job says, kills its last worker and adds another when it is time."""

    def __init__(self, command: list[str], is_wanted: bool) -> None:
        self._command, self._is_wanted = command, is_wanted
        self._victim = 0  # pid
        self._scheduler = ""
        self._adding: threading.Thread | None = None
        self._added: JobResult | None = None
        self.lines: list[str] = []

    def hear(self, line: Line) -> None:
        self.lines.append(f"{line.role} {line.rank}: {line.text}")
        if found := re.match(rf"worker {WORKERS - 1} is process (\d+), in generation 1", line.text):
            self._victim = int(found[1])
        if not self._is_wanted or not (found := re.match(r"(\d+)% of the training", line.text)):
            return
        percent = int(found[1])
        if percent >= KILL_AT and self._victim:
            os.kill(self._victim, signal.SIGKILL)
            self._victim = 0
        if percent >= ADD_AT and self._adding is None:
            self._adding = threading.Thread(target=self._add)
            self._adding.start()

    def hear_launcher(self, text: str) -> None:
        self.lines.append(text)
        if found := re.search(r"--join (tcp://\S+)", text):
            self._scheduler = found[1]

    def _add(self) -> None:
        self._added = run_job(
            self._command,
            1,
            0,
            env=SETTINGS,
            joins=self._scheduler,
            output=lambda line: self.lines.append(f"added: {line.text}"),
            report=self.lines.append,
            timeout=TIMEOUT,
        )

    def end(self) -> None:
        """Raises Failed where what was wanted did not happen."""
        if self._adding is not None:
            self._adding.join()
        happened = self._added is not None and self._added.exit_code == 0
        if self._is_wanted and not happened:
            raise Failed("no worker was added\n" + "\n".join(self.lines[-20:]))


def train(arm: str, seed: int, flags: str) -> dict[str, object]:
    """Runs one job and returns its row.

    Raises: Failed.
    """
    is_disturbed, own = ARMS[arm]
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        command = [sys.executable, str(SCRIPT), *SHARED.split(), *flags.split(), *own.split()]
        command += ["--seed", str(seed)]
        disturbance = Disturbance(command, is_disturbed)
        ended = run_job(
            [*command, "--json", str(record)],
            WORKERS,
            0,
            env=SETTINGS,
            output=disturbance.hear,
            report=disturbance.hear_launcher,
            timeout=TIMEOUT,
        )
        if ended.exit_code != 0 or not record.exists():
            last = "\n".join(disturbance.lines[-20:])
            raise Failed(f"{arm}, seed {seed}: ended with {ended.exit_code}\n{last}")
        disturbance.end()
        found = json.loads(record.read_text())
    generations = " ".join(f"{workers}@{share:g}" for workers, share in found["generations"])
    row = {"arm": arm, "seed": seed, "generations": generations, "lost": len(ended.lost)}
    return row | {"accuracy": found["accuracy"], "steps": found["steps"]}


def read(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    with file.open(newline="") as rows:
        return list(csv.DictReader(rows))


def append(file: Path, row: dict[str, object]) -> None:
    is_new = not file.exists()
    with file.open("a", newline="") as rows:
        writer = csv.DictWriter(rows, FIELDS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def table(rows: list[dict[str, str]]) -> str:
    """The table of README.md: what was measured, and whether it is within the spread of the undisturbed runs."""
    lines = [
        "| arm | seeds | steps | final accuracy, mean (min-max) | mean within the spread of undisturbed |"
    ]
    lines.append("|---" * 5 + "|")
    calm = [float(row["accuracy"]) for row in rows if row["arm"] == "undisturbed"]
    for arm, (is_disturbed, _) in ARMS.items():
        own = [row for row in rows if row["arm"] == arm]
        if not own:
            continue
        found = [float(row["accuracy"]) for row in own]
        steps = statistics.median(int(row["steps"]) for row in own)
        mean = statistics.fmean(found)
        within = ""
        if is_disturbed and len(calm) > 1:  # one seed has no spread
            within = "yes" if min(calm) <= mean <= max(calm) else "**no**"
        spread = f"{mean:.4f} ({min(found):.4f}-{max(found):.4f})"
        lines.append(f"| {arm} | {len(own)} | {steps:.0f} | {spread} | {within} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="0 to N-1 (default: 5; 1 with --quick)")
    parser.add_argument("--quick", action="store_true", help="a shorter training: does it work?")
    parser.add_argument("--tables", action="store_true", help="measure nothing, print what there is")
    given = parser.parse_args()
    folder = REPORT if given.quick else HERE
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "results.csv"
    seeds = (1 if given.quick else 5) if given.seeds is None else given.seeds
    wanted = [] if given.tables else [(arm, seed) for seed in range(seeds) for arm in ARMS]
    had = {(row["arm"], int(row["seed"])) for row in read(file)}
    for arm, seed in wanted:
        if (arm, seed) in had:
            continue
        try:
            row = train(arm, seed, QUICK if given.quick else WHOLE)
        except Failed as failure:
            say(f"elastic: {failure}")
            return 1
        append(file, row)
        print("  ".join(f"{name} {row[name]}" for name in FIELDS), flush=True)
    print(table(read(file)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
