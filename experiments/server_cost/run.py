"""What does a server pay to sum a gigabyte, for 1 to 32 workers? A `gradwire bench ps` a cell, MXNet in turns with it.

    python experiments/server_cost/run.py [--codec 2bit]... [--workers 8]... [--repeat 7] [--mxnet-python FILE]
    python experiments/server_cost/run.py --tables       measures nothing: prints README.md's table

A cell that has ended replaces its record in results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WORKERS = (1, 2, 4, 8, 16, 32)
CODECS = ("none", "fp16", "2bit")
MOST_WITH_MXNET = 8  # a worker of MXNet takes some 400 MB
# Of all workers' gradients together, a round: as many bytes to sum whoever they come from.
ROUND_BYTES = 400_000_000
# MXNet has TCP alone, so gradwire, which would take local sockets between processes of one host, has it too.
TCP = {"GRADWIRE_IPC": "off"}
_SECONDS = 3600


def measure(codec: str, workers: int, given: argparse.Namespace) -> dict[str, Any]:
    """Runs one cell; raises RuntimeError where a sum was wrong."""
    words = ["bench", "ps", "--ranks", str(workers), "--servers", "1", "--codec", codec]
    words += ["--bytes", str(ROUND_BYTES // workers), "--repeat", str(given.repeat)]
    options: list[str] = []
    if workers <= MOST_WITH_MXNET:
        words += ["--peer", "mxnet"]
        options = ["--mxnet-python", given.mxnet_python] if given.mxnet_python else []
    before = os.getloadavg()[0]
    done = subprocess.run(
        [sys.executable, "-m", "gradwire.cli", *words, *options, "--json", "-"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_SECONDS,
        env=os.environ | TCP,
    )
    records = json.loads(done.stdout)
    if not all(record["checksum"] for record in records):
        raise RuntimeError(f"server_cost: {codec}, {workers} workers: a sum was wrong: {records}")
    fields = ("system", "codec", "reply", "seconds_median", "server_cpu_seconds_per_gb", "cpu_seconds_per_gb")
    return {
        "codec": codec,
        "workers": workers,
        "command": " ".join([*(f"{name}={value}" for name, value in TCP.items()), "gradwire", *words]),
        "load_before": round(before, 1),
        "records": [{field: record[field] for field in fields} for record in records],
    }


def markdown(results: list[dict[str, Any]]) -> str:
    """The table of README.md: a server's CPU seconds per GB of float32 gradient that it summed."""
    lines = ["| codec | system | " + " | ".join(f"{n} workers" for n in WORKERS) + " |"]
    lines.append("|---" * (len(WORKERS) + 2) + "|")
    for codec in CODECS:
        cells: dict[str, dict[int, str]] = {}
        for result in results:
            for record in result["records"] if result["codec"] == codec else ():
                label = f"{record['system']} {record['codec']}"
                cost = f"{record['server_cpu_seconds_per_gb']:.3f}"
                cells.setdefault(label, {})[result["workers"]] = cost
        for label, row in cells.items():
            lines.append(f"| {codec} | {label} | " + " | ".join(row.get(n, "") for n in WORKERS) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--codec", action="append", choices=CODECS, help="repeatable; unset: all")
    parser.add_argument(
        "--workers", action="append", type=int, choices=WORKERS, help="repeatable; unset: all"
    )
    parser.add_argument("--repeat", type=int, default=7, help="timed rounds of each system")
    parser.add_argument("--mxnet-python", metavar="FILE")
    parser.add_argument("--folder", type=Path, default=HERE, help="where results.json is")
    parser.add_argument("--tables", action="store_true", help="measure nothing, print the table")
    given = parser.parse_args()
    file = given.folder / "results.json"
    known = json.loads(file.read_text()) if file.exists() else []
    results = {(r["codec"], r["workers"]): r for r in known}
    for codec in [] if given.tables else given.codec or CODECS:
        for workers in given.workers or WORKERS:
            results[codec, workers] = measure(codec, workers, given)
            file.write_text(json.dumps([results[cell] for cell in sorted(results)], indent=1) + "\n")
            print(f"{codec}, {workers} workers: {results[codec, workers]['records']}", flush=True)
    print(markdown(list(results.values())))


if __name__ == "__main__":
    main()
