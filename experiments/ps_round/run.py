"""Runs the rows of README.md, one `gradwire bench ps` each, and writes results.json with the load beside them.

python experiments/ps_round/run.py [--repeat 7] [--row NAME]... [--mxnet-python FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).with_name("results.json")
ROWS = {
    "loopback-none": ["--codec", "none"],
    "loopback-2bit": ["--codec", "2bit"],
    "1gbit-none": ["--codec", "none", "--bandwidth", "1gbit"],
    "1gbit-2bit": ["--codec", "2bit", "--bandwidth", "1gbit"],
    "1gbit-2bit-2bit": ["--codec", "2bit", "--reply", "2bit", "--bandwidth", "1gbit"],
    "1gbit-none-colocated": ["--codec", "none", "--bandwidth", "1gbit", "--colocated"],
    "1gbit-none-mirrored": ["--codec", "none", "--bandwidth", "1gbit", "--replicas", "1"],
    "1gbit-2bit-mirrored": ["--codec", "2bit", "--bandwidth", "1gbit", "--replicas", "1"],
    "10gbit-none": ["--codec", "none", "--bandwidth", "10gbit"],
    "10gbit-2bit": ["--codec", "2bit", "--bandwidth", "10gbit"],
    "10gbit-2bit-2bit": ["--codec", "2bit", "--reply", "2bit", "--bandwidth", "10gbit"],
}


def run(name: str, options: list[str]) -> dict[str, object]:
    command = ["gradwire", "bench", "ps", "--ranks", "2", "--servers", "2", "--bytes", "100MB"]
    command += ["--peer", "mxnet", *ROWS[name]]
    before = os.getloadavg()[0]
    done = subprocess.run(
        [sys.executable, "-m", "gradwire.cli", *command[1:], *options, "--json", "-"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=1800,
    )
    load = [round(before, 1), round(os.getloadavg()[0], 1)]
    return {
        "row": name,
        "command": " ".join(command),
        "load_before_and_after": load,
        "records": json.loads(done.stdout),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--row", action="append", choices=list(ROWS), help="repeatable; unset: all")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--mxnet-python")
    given = parser.parse_args()
    options = ["--repeat", str(given.repeat)]
    if given.mxnet_python:
        options += ["--mxnet-python", given.mxnet_python]
    results = {row["row"]: row for row in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    for name in given.row or ROWS:
        results[name] = run(name, options)
        RESULTS.write_text(json.dumps([results[row] for row in ROWS if row in results], indent=1) + "\n")
        medians = [
            f"{r['system']} {r['codec']} {r['seconds_median']:.3f} s" for r in results[name]["records"]
        ]
        print(f"{name}: {', '.join(medians)}; load {results[name]['load_before_and_after']}", flush=True)


if __name__ == "__main__":
    main()
