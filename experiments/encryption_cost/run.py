"""What do encryption and payload checksums cost a round? One `gradwire bench` a cell, all cells of a row in turns.

    python experiments/encryption_cost/run.py [--row allreduce-1gbit]... [--codec none]... [--repeat 7] [--turns 5]
    python experiments/encryption_cost/run.py --tables       measures nothing: prints README.md's tables

Needs root, for links. A row's codecs that have ended replace their records in results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradwire.report.paired_statistics import paired_ratio

HERE = Path(__file__).resolve().parent
CODECS = ("none", "fp16", "int8", "2bit", "2bit:reply=2bit", "topk")
# An arm is what its job is told, over the row's options. `checksum` is gradwire's own; CURVE has an authenticator.
ARMS = {
    "plain": {"GRADWIRE_CHECKSUM": "off"},
    "checksum": {"GRADWIRE_CHECKSUM": "always"},
    "encrypted": {"GRADWIRE_CHECKSUM": "off"},
    "both": {"GRADWIRE_CHECKSUM": "always"},
}
ENCRYPTED = ("encrypted", "both")
ROWS = {
    f"{bench}-{link}": [*options, "--bandwidth", link]
    for bench, options in {
        "allreduce": ["allreduce", "-n", "4"],
        "ps": ["ps", "-n", "2", "-s", "2"],
    }.items()
    for link in ("1gbit", "10gbit")
}
_SECONDS = 3600


def bench(row: str, codec: str, arm: str, given: argparse.Namespace) -> dict[str, Any]:
    """Runs one cell once. Returns the bench's record."""
    spec, _, reply = codec.partition(":reply=")
    words = [*ROWS[row], "--codec", spec, *(["--reply", reply] if reply else [])]
    words += [
        "--bytes",
        given.bytes,
        "--repeat",
        str(given.repeat),
        *(["--encrypt"] if arm in ENCRYPTED else []),
    ]
    environment = dict(os.environ)
    if words[0] == "allreduce":
        words += ["--checksum", ARMS[arm]["GRADWIRE_CHECKSUM"], "--launches", "1"]
    else:
        environment |= ARMS[arm]
    done = subprocess.run(
        [sys.executable, "-m", "gradwire.cli", "bench", *words, "--json", "-"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_SECONDS,
        env=environment,
    )
    (record,) = json.loads(done.stdout)
    if record["encrypted"] is not (arm in ENCRYPTED) or not record["checksum"]:
        raise RuntimeError(
            f"encryption_cost: {row} {codec} {arm}: not what was asked for, or wrong: {record}"
        )
    return dict(record)


def measure(row: str, codec: str, given: argparse.Namespace) -> dict[str, Any]:
    """Runs all arms in turns, and compares each with the plain one of the same turn."""
    records: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for turn in range(given.turns):
        for arm in ARMS:
            records[arm].append(bench(row, codec, arm, given))
        print(f"{row} {codec}: turn {turn + 1} of {given.turns}", flush=True)

    def medians(arm: str, field: str) -> list[float]:
        return [record[field] for record in records[arm]]

    return {
        "row": row,
        "codec": codec,
        "bytes": given.bytes,
        "repeat": given.repeat,
        "turns": given.turns,
        "load": round(os.getloadavg()[0], 1),
        "wire_limit_seconds": records["plain"][0]["wire_limit_seconds"],
        "arms": {
            arm: {
                "seconds_median": statistics.median(medians(arm, "seconds_median")),
                "seconds_over_plain": asdict(
                    paired_ratio(medians(arm, "seconds_median"), medians("plain", "seconds_median"))
                ),
                "cpu_over_plain": asdict(
                    paired_ratio(medians(arm, "cpu_seconds_per_gb"), medians("plain", "cpu_seconds_per_gb"))
                ),
                "cpu_seconds_per_gb": statistics.median(medians(arm, "cpu_seconds_per_gb")),
            }
            for arm in ARMS
        },
    }


def markdown(results: list[dict[str, Any]]) -> str:
    """The table of README.md: seconds, and each arm over plain with its interval."""
    lines = [
        "| row | codec | plain, s | "
        + " | ".join(f"{arm} / plain" for arm in list(ARMS)[1:])
        + " | CPU, both |"
    ]
    lines.append("|---" * (len(ARMS) + 3) + "|")
    for result in results:
        arms = result["arms"]
        ratios = [_interval(arms[arm]["seconds_over_plain"]) for arm in list(ARMS)[1:]]
        cpu = _interval(arms["both"]["cpu_over_plain"])
        plain = f"{arms['plain']['seconds_median']:.3f}"
        lines.append(f"| {' | '.join([result['row'], result['codec'], plain, *ratios, cpu])} |")
    return "\n".join(lines)


def _interval(row: dict[str, Any]) -> str:
    ends = "" if row["low"] is None else f" ({row['low']:.2f} to {row['high']:.2f})"
    return f"{row['mean']:.2f}{ends}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--row", action="append", choices=list(ROWS), help="repeatable; unset: all")
    parser.add_argument("--codec", action="append", help="repeatable; unset: " + ", ".join(CODECS))
    parser.add_argument("--repeat", type=int, default=7, help="timed rounds of a bench")
    parser.add_argument(
        "--turns", type=int, default=5, help="benches of each arm, which are compared in pairs"
    )
    parser.add_argument("--bytes", default="100MB", help="of the gradient")
    parser.add_argument("--folder", type=Path, default=HERE, help="where results.json is")
    parser.add_argument("--tables", action="store_true", help="measure nothing, print the tables")
    given = parser.parse_args()
    file = given.folder / "results.json"
    results = {(r["row"], r["codec"]): r for r in json.loads(file.read_text())} if file.exists() else {}
    for row in [] if given.tables else given.row or ROWS:
        for codec in given.codec or CODECS:
            results[row, codec] = measure(row, codec, given)
            file.write_text(json.dumps(list(results.values()), indent=1) + "\n")
    print(markdown(list(results.values())))


if __name__ == "__main__":
    main()
