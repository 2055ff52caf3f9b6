"""Runs the rows of README.md, one `gradwire bench allreduce` each; writes results.json, results.csv and results.svg.

python experiments/allreduce_round/run.py [--row NAME]... [--repeat 7] [--bytes 100MB] [--mxnet] [--encrypt] [...]
python experiments/allreduce_round/run.py --tables       only prints README.md's tables from results.json

With --encrypt gradwire's links are encrypted, the peers' are not, and files are in the folder encrypted/.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import figures

TWO_BIT = ["--codec", "2bit:reply=2bit", "--codec", "2bit", "--peer", "gloo,gloo-fp16,gloo-powersgd,openmpi"]
DENSE = ["--codec", "none", "--checksum", "always,off", "--peer", "gloo,gloo-fp16,openmpi"]
SMALL = ["--bytes", "1MB", "--tensors", "1000", "--codec", "none", "--peer", "gloo,openmpi"]
LINKS = {
    "100mbit": ["--bandwidth", "100mbit"],
    "1gbit": ["--bandwidth", "1gbit"],
    "10gbit": ["--bandwidth", "10gbit"],
}
LINKS["loopback"] = []
ROWS = {
    **{f"dense-{n}-{link}": [*DENSE, "-n", n, *LINKS[link]] for link in list(LINKS)[1:] for n in ("2", "4")},
    **{f"2bit-4-{link}": [*TWO_BIT, "-n", "4", *options] for link, options in LINKS.items()},
    **{
        f"small-{n}-{link}": [*SMALL, "-n", n, *LINKS[link]]
        for link in ("1gbit", "loopback")
        for n in ("2", "4")
    },
}
_SECONDS = 3600
HERE = Path(__file__).resolve().parent


def run(name: str, size: str, more: list[str]) -> dict[str, Any]:
    given = ROWS[name]
    options = given if "--bytes" in given else [*given, "--bytes", size]
    command = ["bench", "allreduce", *options, *more]
    before = os.getloadavg()[0]
    done = subprocess.run(
        [sys.executable, "-m", "gradwire.cli", *command, "--json", "-"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_SECONDS,
    )
    return {
        "row": name,
        "command": " ".join(["gradwire", *command]),
        "load_before_and_after": [round(before, 1), round(os.getloadavg()[0], 1)],
        "records": json.loads(done.stdout),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--row", action="append", choices=list(ROWS), help="repeatable; unset: all")
    parser.add_argument("--repeat", type=int, default=7, help="timed rounds of each system, at least 5")
    parser.add_argument("--bytes", default="100MB", help="of the gradient; small-* rows always have 1MB")
    parser.add_argument("--mxnet", action="store_true", help="MXNet too, in the rows of one tensor")
    parser.add_argument("--encrypt", action="store_true", help="gradwire's links with CURVE")
    parser.add_argument("--folder", type=Path, help="where results are")
    parser.add_argument("--tables", action="store_true", help="measure nothing, print the tables")
    given = parser.parse_args()
    if given.folder is None:
        given.folder = HERE / "encrypted" if given.encrypt else HERE
    given.folder.mkdir(parents=True, exist_ok=True)
    file = given.folder / "results.json"
    results = {row["row"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    for name in [] if given.tables else given.row or ROWS:
        more = ["--repeat", str(given.repeat), *(["--encrypt"] if given.encrypt else [])]
        if given.mxnet and not name.startswith("small"):
            peers = ROWS[name][ROWS[name].index("--peer") + 1]
            more += ["--peer", f"{peers},mxnet"]
        results[name] = run(name, given.bytes, more)
        rows = [results[row] for row in ROWS if row in results]
        file.write_text(json.dumps(rows, indent=1) + "\n")
        figures.write(given.folder, rows)
        medians = [f"{r['label']} {r['seconds_median']:.4f} s" for r in results[name]["records"]]
        print(f"{name}: {'; '.join(medians)}; load {results[name]['load_before_and_after']}", flush=True)
    print(figures.markdown([results[row] for row in ROWS if row in results]))


if __name__ == "__main__":
    main()
