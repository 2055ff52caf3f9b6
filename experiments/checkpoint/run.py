"""Trains without a stop, and from halfway with 3, 4 and 6 workers, and compares; with the momentum of all, and with one
of each worker's own. See README.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GRADWIRE = Path(sys.executable).with_name("gradwire")
BATCH = 48  # windows of all workers together
WORKERS = 4
RESUMED = (3, 4, 6)
MOMENTUM = {"all": "off", "each worker": "on"}  # whose it is, and --momentum-correction
LONGEST_SECONDS = 3600.0  # of one job


def train(workers: int, seed: int, steps: int, *options: str) -> dict[str, Any]:
    """Runs one job and returns its record, which a job that stops has not."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [
            str(GRADWIRE),
            "run",
            "-n",
            str(workers),
            "-s",
            "2",
            sys.executable,
            str(HERE / "train.py"),
        ]
        flags = [f"--seed={seed}", f"--steps={steps}", f"--batch={BATCH}", f"--result={result}", *options]
        subprocess.run([*command, *flags], check=True, timeout=LONGEST_SECONDS)
        record: dict[str, Any] = json.loads(result.read_text())
        return record


def one_seed(seed: int, steps: int, correction: str) -> dict[str, Any]:
    """Returns the records of a seed, by arm."""
    momentum = f"--momentum-correction={correction}"
    with tempfile.TemporaryDirectory() as folder:
        arms = {"never stopped": train(WORKERS, seed, steps, momentum)}
        train(WORKERS, seed, steps, momentum, f"--stop={folder}")
        for workers in RESUMED:
            arms[f"to {workers}"] = train(workers, seed, steps, momentum, f"--resume={folder}")
    if arms[f"to {WORKERS}"]["sha256"] != arms["never stopped"]["sha256"]:
        raise ValueError(f"checkpoint: seed {seed}: {WORKERS} workers that went on have other weights")
    return arms


def table(whose: str, seeds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compares the arms at every point after the stop."""
    rows = []
    for workers in RESUMED:
        arm = f"to {workers}"
        for point in seeds[0][arm]["losses"]:
            straight = [seed["never stopped"]["losses"][point] for seed in seeds]
            difference = [
                seed[arm]["losses"][point] - loss for seed, loss in zip(seeds, straight, strict=True)
            ]
            spread = statistics.stdev(straight) if len(seeds) > 1 else float("nan")
            mean = statistics.fmean(difference)
            rows.append(
                {
                    "momentum_of": whose,
                    "arm": arm,
                    "step": int(point),
                    "never_stopped": statistics.fmean(straight),
                    "spread": spread,
                    "difference": mean,
                    "within": abs(mean) <= spread,
                }
            )
    return rows


def markdown(record: dict[str, Any]) -> str:
    """The table of README.md: differences from the job that never stopped, at each point after the stop."""
    rows = record["table"]
    points = list(dict.fromkeys(row["step"] for row in rows))
    lines = [f"| momentum of | row | {' | '.join(f'step {point}' for point in points)} |"]
    lines.append("|---" * (2 + len(points)) + "|")
    for whose in dict.fromkeys(row["momentum_of"] for row in rows):
        own = [row for row in rows if row["momentum_of"] == whose]
        straight = [f"{row['never_stopped']:.3f} ± {row['spread']:.3f}" for row in own[: len(points)]]
        lines.append(f"| {whose} | never stopped | {' | '.join(straight)} |")
        for arm in dict.fromkeys(row["arm"] for row in own):
            cells = [
                f"{row['difference']:+.4f}{'' if row['within'] else ' **outside**'}"
                for row in own
                if row["arm"] == arm
            ]
            lines.append(f"| {whose} | {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def measure(seeds: int, steps: int) -> dict[str, Any]:
    records = {
        whose: [one_seed(seed, steps, correction) for seed in range(seeds)]
        for whose, correction in MOMENTUM.items()
    }
    rows = [row for whose, found in records.items() for row in table(whose, found)]
    return {"steps": steps, "batch": BATCH, "seeds": records, "table": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400, help="a multiple of 20")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the results (default: here)")
    parser.add_argument("--tables", action="store_true", help="measure nothing, print what there is")
    args = parser.parse_args()
    file = args.out / "results.json"
    if not args.tables:
        args.out.mkdir(parents=True, exist_ok=True)
        record = measure(args.seeds, args.steps)
        file.write_text(json.dumps(record, indent=1) + "\n")
        with (args.out / "results.csv").open("w", newline="") as rows:
            writer = csv.DictWriter(rows, list(record["table"][0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(record["table"])
    print(markdown(json.loads(file.read_text())))


if __name__ == "__main__":
    main()
