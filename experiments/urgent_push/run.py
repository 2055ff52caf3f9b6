"""How long does an urgent key wait for what is on its way already? With gradwire's limit on unsent bytes, and without.

python experiments/urgent_push/run.py [--bandwidth 1gbit]... [--turns 5] [--rounds 5]
python experiments/urgent_push/run.py --tables       measures nothing: prints README.md's table

Needs root, for links.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradwire.bench.hosts import Network
from gradwire.launch.child import Line
from gradwire.launch.supervisor import run_job
from gradwire.plan.simulation import PAYLOAD_SHARE
from gradwire.report.paired_statistics import paired_ratio
from gradwire.settings.units import parse_rate, parse_size
from gradwire.terminal.machine import machine_description

HERE = Path(__file__).resolve().parent
BANDWIDTHS = ("100mbit", "1gbit", "10gbit")
# Linux's own limit, which gradwire sets one of its own below; and one byte less, which it takes for the owner's wish.
ARMS = {"bounded": 2**32 - 1, "unbounded": 2**32 - 2}
_SECONDS = 900


def launch(bandwidth: str, arm: str, bulk_bytes: int, rounds: int) -> dict[str, list[float]]:
    """Runs one job of a worker and a server on hosts of their own. Returns what the worker measured.

    Raises: RuntimeError: it failed. KeyboardInterrupt: it was stopped by a signal.
    """
    said: list[str] = []

    def remember(line: Line) -> None:
        said.append(f"{line.role} {line.rank}: {line.text}")

    with (
        tempfile.TemporaryDirectory(prefix="gradwire-urgent-") as folder,
        Network.open(1, 1, bandwidth, colocated=False) as network,
    ):
        for role in ("worker", "server"):
            command = f"echo {ARMS[arm]} > /proc/sys/net/ipv4/tcp_notsent_lowat"
            if network.place(role, 0).popen(["sh", "-ec", command]).wait(timeout=10) != 0:
                raise RuntimeError(f"urgent_push: {role} 0's host does not let its limit be set")
        network.forget_processes()
        file = Path(folder) / "taken.json"
        words = [str(file), str(bulk_bytes), str(rounds), str(wire_seconds(bandwidth, bulk_bytes) / 2)]
        job = run_job(
            [sys.executable, str(HERE / "worker.py"), *words],
            1,
            1,
            placement=network.place,
            output=remember,
            timeout=_SECONDS,
        )
        job.require_success("urgent_push", said[-20:])
        taken: dict[str, list[float]] = json.loads(file.read_text())
    return taken


def wire_seconds(bandwidth: str, bulk_bytes: int) -> float:
    """What bulk needs of the wire, one way."""
    return bulk_bytes * 8 / (PAYLOAD_SHARE * parse_rate(bandwidth))


def measure(bandwidth: str, bulk_bytes: int, turns: int, rounds: int) -> dict[str, Any]:
    """Runs both arms in turns."""
    load = os.getloadavg()[0]
    taken: dict[str, list[dict[str, list[float]]]] = {arm: [] for arm in ARMS}
    for turn in range(turns):
        for arm in ARMS:
            taken[arm].append(launch(bandwidth, arm, bulk_bytes, rounds))
        print(f"{bandwidth}: turn {turn + 1} of {turns}", file=sys.stderr, flush=True)

    def medians(arm: str, key: str) -> list[float]:
        return [statistics.median(launched[key]) for launched in taken[arm]]

    return {
        "bandwidth": bandwidth,
        "machine": machine_description(),
        "load_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
        "bulk_bytes": bulk_bytes,
        "rounds": rounds,
        "wire_seconds": wire_seconds(bandwidth, bulk_bytes),
        "taken": taken,
        "bounded_over_unbounded": {
            key: asdict(paired_ratio(medians("bounded", key), medians("unbounded", key)))
            for key in ("urgent", "bulk")
        },
    }


def markdown(results: list[dict[str, Any]]) -> str:
    """README.md's table: medians over all rounds, and ratios of the launches' medians, in pairs."""
    head = ["link", "urgent, ms: unbounded", "bounded", "ratio", "bulk, s: unbounded", "bounded", "ratio"]
    lines = [f"| {' | '.join(head)} | wire one way, s | load |", "|---" * (len(head) + 2) + "|"]
    for result in results:
        cells = [result["bandwidth"]]
        for key, factor, digits in (("urgent", 1000, 1), ("bulk", 1, 3)):
            for arm in ("unbounded", "bounded"):
                values = [value for launched in result["taken"][arm] for value in launched[key]]
                cells.append(f"{factor * statistics.median(values):.{digits}f}")
            ratio = result["bounded_over_unbounded"][key]
            cells.append(f"{ratio['mean']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})")
        cells += [f"{result['wire_seconds']:.3f}", "-".join(map(str, result["load_before_and_after"]))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bandwidth", action="append", choices=BANDWIDTHS, help="repeatable; unset: all")
    parser.add_argument(
        "--turns", type=int, default=5, help="launches of each arm, which are compared in pairs"
    )
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of a launch")
    parser.add_argument("--bytes", default="100MB", help="of bulk")
    parser.add_argument("--folder", type=Path, default=HERE, help="where results.json is")
    parser.add_argument("--tables", action="store_true", help="measure nothing, print the table")
    given = parser.parse_args()
    if given.turns < 2 or given.rounds < 1:
        parser.error("--turns: expected 2 or more, of at least 1 of --rounds: one pair has no interval")
    file = given.folder / "results.json"
    results = {row["bandwidth"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    for bandwidth in [] if given.tables else given.bandwidth or BANDWIDTHS:
        results[bandwidth] = measure(bandwidth, parse_size(given.bytes), given.turns, given.rounds)
        file.write_text(json.dumps([results[b] for b in BANDWIDTHS if b in results], indent=1) + "\n")
    print(markdown(list(results.values())))


if __name__ == "__main__":
    main()
