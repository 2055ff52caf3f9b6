"""Checks gradwire on a machine with a GPU, in at most 9 minutes, and prints a table of what was found.

    python experiments/gpu/run.py --kit build/gpu-kit --out report/gpu      the steps that are on by default
    python experiments/gpu/run.py --steps transformer-25,cores-25           some steps
    python experiments/gpu/run.py --rehearse                                every default step, shorter, without a GPU
    python experiments/gpu/run.py --list                                    the steps and their times

Writes results.json and a log for each step into --out. The exit status is 0 if nothing failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine import HERE, ROOT, GpuMachine, Machine, Rehearsal
from steps import STEPS, Row, Step

SECONDS = 540.0
"""For a whole default run."""
MOST_LINES = 60
WIDTH = 150


def chosen(text: str | None) -> list[Step]:
    """Raises: ValueError: a name that no step has."""
    if text is None:
        return [step for step in STEPS if step.is_default]
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError("--steps: it names no step; steps: " + ", ".join(step.name for step in STEPS))
    if unknown := sorted(set(names) - {step.name for step in STEPS}):
        raise ValueError(
            f"--steps: no step {', '.join(unknown)}; steps: {', '.join(step.name for step in STEPS)}"
        )
    return [step for step in STEPS if step.name in names]


def carry_out(step: Step, machine: Machine, number: int, seconds: float) -> dict[str, Any]:
    """Runs a step within its seconds and returns its record. What it raises is a row that failed."""
    began = time.monotonic()
    machine.log = machine.out / "logs" / f"{number}-{step.name}.log"
    machine.log.parent.mkdir(parents=True, exist_ok=True)
    machine.log.write_text("")
    machine.deadline = began + seconds
    rows: list[Row] = []
    try:
        with machine.shared_gpu() if step.shares_gpu else contextlib.nullcontext():
            rows.extend(step.rows(machine))
    except Exception as error:
        rows.append(Row("the step itself", f"{type(error).__name__}: {error}", "failed"))
    failed = any(row.verdict == "failed" for row in rows)
    return {
        "step": step.name,
        "title": step.title,
        "status": "failed" if failed or not rows else "ok",
        "seconds": round(time.monotonic() - began, 1),
        "budget_seconds": round(seconds, 1),
        "rows": [asdict(row) for row in rows],
    }


def table(records: Sequence[dict[str, Any]]) -> list[str]:
    """Writes what was found in at most MOST_LINES lines: rows that failed first, where there are too many."""
    lines: list[tuple[int, str]] = []
    for record in records:
        head = f"{record['step']:12} {record['status']:7} {record['seconds']:5.1f} s of {record['budget_seconds']:g}"
        lines.append((0, f"{head}  {record['title']}"))
        for row in record["rows"]:
            mark = {"failed": "!", "not run": "-", "ok": "+"}.get(row["verdict"], " ")
            weight = {"failed": 1, "figure": 2, "ok": 3}.get(row["verdict"], 4)
            lines.append((weight, f" {mark} {row['what']}: {row['found']}"[:WIDTH]))
    left_out = len(lines) - MOST_LINES
    if left_out > 0:
        kept = set(sorted(range(len(lines)), key=lambda i: (lines[i][0], i))[: MOST_LINES - 1])
        lines = [line for i, line in enumerate(lines) if i in kept]
        lines.append((0, f"   {left_out + 1} more lines stand in results.json"))
    return [text for _, text in lines]


def clear(out: Path) -> None:
    """Makes the folder, without what an earlier run has left there."""
    (out / "logs").mkdir(parents=True, exist_ok=True)
    for old in [out / "results.json", *(out / "logs").glob("*.log")]:
        old.unlink(missing_ok=True)


def main() -> int:
    default_kit = HERE.parents[1] if (HERE.parents[1] / "wheels").is_dir() else ROOT / "build" / "gpu-kit"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kit", type=Path, default=default_kit, help="made by `make gpu-kit` (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("report/gpu"), help="results (default: %(default)s)")
    parser.add_argument("--steps", help="names with commas between them (default: those that --list marks)")
    parser.add_argument("--rehearse", action="store_true", help="shorter, without a GPU, from the build tree")
    parser.add_argument("--list", action="store_true", help="print the steps and their times, and run none")
    given = parser.parse_args()
    try:
        steps = chosen(given.steps)
    except ValueError as error:
        parser.error(str(error))
    if given.list:
        for step in STEPS:
            print(f"{'*' if step.is_default else ' '} {step.name:20} {step.seconds:4.0f} s  {step.title}")
        print("* by default")
        return 0
    began = time.monotonic()
    out = given.out.resolve()
    machine = Rehearsal(out) if given.rehearse else GpuMachine(given.kit.resolve(), out)
    try:
        clear(out)
        print(f"installed from the kit: {machine.prepare()}", flush=True)
    except (OSError, RuntimeError) as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 2
    total = (SECONDS if given.steps is None else sum(step.seconds for step in steps)) * machine.patience
    records: list[dict[str, Any]] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started ends, too
    try:
        for number, step in enumerate(steps, start=1):
            left = total - (time.monotonic() - began)
            record = carry_out(step, machine, number, max(min(step.seconds * machine.patience, left), 0))
            records.append(record)
            done = {
                "rehearsal": given.rehearse,
                "seconds": round(time.monotonic() - began, 1),
                "steps": records,
            }
            (out / "results.json").write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
            print(f"{step.name}: {record['status']} after {record['seconds']} s", flush=True)
    except KeyboardInterrupt:
        print(f"gpu: interrupted in step {steps[len(records)].name}", file=sys.stderr)
    print("\n" + "\n".join(table(records)))
    if len(records) < len(steps):
        return 130
    return int(any(record["status"] != "ok" for record in records))


if __name__ == "__main__":
    sys.exit(main())
