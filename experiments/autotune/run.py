"""What does `gradwire tune` gain? It tunes real jobs of two ranks, and defaults are compared with what it found.

python experiments/autotune/run.py [--row NAME]... [--trials 80] [--folder DIR]
python experiments/autotune/run.py --tables       only prints README.md's table from results.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.report.chart import Bar, Panel, panel_chart, standalone
from gradwire.settings.units import format_bytes, format_duration

TRAIN = Path(__file__).with_name("train.py")
BANDWIDTH = "1gbit"
RANKS = 2


@dataclass(frozen=True)
class Row:
    model: str
    codec: str
    servers: int  # 0: peers


ROWS = {
    "25m none peers": Row("25m", "none", 0),
    "25m 2bit peers": Row("25m", "2bit", 0),
    "25m none servers": Row("25m", "none", 2),
    "vgg16 none peers": Row("vgg16", "none", 0),
    "vgg16 2bit peers": Row("vgg16", "2bit", 0),
}


def command(row: Row, trials: int, report: Path, record: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "gradwire.cli", "tune", "-n", str(RANKS), "-s", str(row.servers)),
        *("--bandwidth", BANDWIDTH, "--trials", str(trials), "--report", str(report), "--json", str(record)),
        *("--", sys.executable, str(TRAIN), row.model, row.codec),
    ]


def tune(name: str, trials: int, folder: Path) -> dict[str, Any]:
    """Tunes one row; its page and record stay in folder.

    Raises: RuntimeError: it failed, or was interrupted.
    """
    row = ROWS[name]
    load = os.getloadavg()[0]
    of_row = folder / name.replace(" ", "-")
    of_row.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command(row, trials, of_row, of_row / "tuned.json"), check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: gradwire tune ended with exit code {done.returncode}")
    record: dict[str, Any] = json.loads((of_row / "tuned.json").read_text())
    record.pop("command")  # has paths of this machine
    loads = [round(load, 1), round(os.getloadavg()[0], 1)]
    return {"row": name, "bandwidth": BANDWIDTH, "ranks": RANKS, "load_before_and_after": loads, **record}


def sides(record: dict[str, Any]) -> tuple[float, float] | None:
    """Returns the median step of the defaults and of the setting that has won its duel; None: none has."""
    won = next((duel for duel in record["duels"] if duel["won"]), None)
    if won is None:
        return None
    default, own = zip(*won["pairs"], strict=True)
    return statistics.median(default), statistics.median(own)


def markdown(records: list[dict[str, Any]]) -> str:
    """Returns README.md's table."""
    lines = ["| row | found | step by default | step as tuned | times as fast (95 %) | launches | load |"]
    lines.append("|---|---|---|---|---|---|---|")
    for record in records:
        found = ", ".join(f"{name} {written(name, value)}" for name, value in record["settings"].items())
        steps, speed = sides(record), record["speed"]
        own_default = statistics.median(
            trial["step_seconds"] for trial in record["trials"] if trial["settings"] == {}
        )
        cells = [record["row"], found or "defaults stay", format_duration(steps[0] if steps else own_default)]
        cells.append(format_duration(steps[1]) if steps else "")
        cells.append(f"{speed['mean']:.3f} ({speed['low']:.3f}-{speed['high']:.3f})" if speed else "1")
        cells += [str(len(record["trials"])), "-".join(map(str, record["load_before_and_after"]))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def written(name: str, value: int) -> str:
    return format_bytes(value) if name.endswith("_bytes") else str(value)


def write_chart(file: Path, records: list[dict[str, Any]]) -> None:
    panels = []
    for record in records:
        steps = sides(record)
        if steps is not None:
            bars = (Bar("defaults", steps[0], colour=1), Bar("tuned", steps[1]))
            panels.append(Panel(f"{record['row']}, {record['ranks']} ranks, {record['bandwidth']}", bars))
    if panels:
        file.write_text(standalone(panel_chart(panels, format_duration)), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--row", action="append", choices=list(ROWS), help="repeatable; unset: all")
    parser.add_argument("--trials", type=int, default=80, help="launches of a row at most")
    parser.add_argument(
        "--folder", type=Path, default=Path("report/autotune"), help="where pages are written"
    )
    parser.add_argument("--tables", action="store_true", help="measure nothing, print the table")
    given = parser.parse_args()
    file = Path(__file__).with_name("results.json")
    results = {row["row"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    for name in [] if given.tables else given.row or ROWS:
        results[name] = tune(name, given.trials, given.folder)
        file.write_text(json.dumps([results[row] for row in ROWS if row in results], indent=1) + "\n")
        write_chart(file.with_suffix(".svg"), [results[row] for row in ROWS if row in results])
    print(markdown([results[row] for row in ROWS if row in results]))


if __name__ == "__main__":
    main()
