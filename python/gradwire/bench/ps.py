"""One round through parameter servers, by gradwire and by peers in the same run. `gradwire bench ps`.

Every launch is a real job of processes, on the hosts of one netlab where a bandwidth is given. Systems take turns.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.bench.hosts import Network
from gradwire.bench.plan import Plan
from gradwire.bench.rounds import MARKER
from gradwire.bench.systems import WARM_UP, System, systems
from gradwire.child import Line

_SLOWEST_BYTES_PER_SECOND = 20e6  # of one rank's round, with its check: below this a job has hung
_START_SECONDS = 120.0
_LAST_LINES = 20


class BenchFailed(RuntimeError):
    """A job failed, or its traffic did not take the link; the message says which."""


@dataclass(frozen=True)
class Launch:
    """What one job measured over its timed rounds."""

    seconds: list[float]  # per round, of the slowest rank
    sent_bytes: list[int] | None  # per round and rank; None where the system does not tell
    cpu_seconds: float  # of all workers and servers
    link_bytes: float | None  # per round and rank; None where there are no links
    right: bool


class Collector:
    """Takes the lines of one job: answers its marks, keeps its results and its last words."""

    def __init__(self, network: Network, folder: Path) -> None:
        self._network = network
        self._folder = folder
        self._marks: dict[str, tuple[float, float | None]] = {}
        self._results: list[list[dict[str, Any]]] = []
        self._last: list[str] = []

    def __call__(self, line: Line) -> None:
        if not line.text.startswith(MARKER):
            self._last = [*self._last, f"{line.role} {line.rank}: {line.text}"][-_LAST_LINES:]
            return
        record = json.loads(line.text.removeprefix(MARKER))
        if "rounds" in record:
            self._results.append(record["rounds"])
        else:
            self._marks[record["mark"]] = self._network.server_seconds(), self._network.sent_bytes()
            (self._folder / record["mark"]).touch()

    def last_words(self) -> str:
        return "".join(f"\n  | {text}" for text in self._last)

    def launch(self, ranks: int) -> Launch:
        """Sums up a job that has ended well."""
        if len(self._results) != ranks:
            raise BenchFailed(f"bench ps: {len(self._results)} of {ranks} workers gave results")
        by_round = list(zip(*self._results, strict=True))
        alike = all(row["digests"] == rows[0]["digests"] for rows in by_round for row in rows)
        timed = [rows for rows in by_round if rows[0]["timed"]]
        flat = [row for rows in timed for row in rows]
        (servers_before, links_before), (servers, links) = self._marks["begin"], self._marks["end"]
        return Launch(
            seconds=[max(row["seconds"] for row in rows) for rows in timed],
            sent_bytes=None if flat[0]["sent_bytes"] is None else [row["sent_bytes"] for row in flat],
            cpu_seconds=servers - servers_before + sum(row["cpu_seconds"] for row in flat),
            link_bytes=None if links is None or links_before is None else (links - links_before) / len(flat),
            right=alike and all(row["right"] for rows in by_round for row in rows),
        )


def measure(plan: Plan, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Runs everything plan asks for and returns one record per system and codec.

    Raises:
        ValueError: an unknown codec or reply.
        BenchFailed, PeerUnavailable, NetLabUnavailable: says what and why.
    """
    rows = systems(plan, say)
    launches = 2 if plan.peers and plan.repeat >= 2 else 1
    counts = [plan.repeat * (i + 1) // launches - plan.repeat * i // launches for i in range(launches)]
    taken: list[list[Launch]] = [[] for _ in rows]
    with Network.open(plan.ranks, plan.servers, plan.bandwidth, plan.colocated) as network:
        for number, count in enumerate(counts, start=1):
            for system, done in zip(rows, taken, strict=True):
                say(f"{system.name} {system.codec}, launch {number} of {launches}: {count} rounds")
                done.append(_run(plan, system, network, count))
    return [_record(plan, system, done) for system, done in zip(rows, taken, strict=True)]


def _run(plan: Plan, system: System, network: Network, count: int) -> Launch:
    network.forget_processes()
    limit = plan.wire_limit(system.pushed, system.replied) or 0.0
    round_patience = 10 * limit + plan.ranks * plan.gradient_bytes / _SLOWEST_BYTES_PER_SECOND
    with tempfile.TemporaryDirectory(prefix="gradwire-bench-") as folder:
        collector = Collector(network, Path(folder))
        patience = _START_SECONDS + (WARM_UP + count) * round_patience
        job = system.start(network, system.task(plan, count, folder), collector, patience)
    if job.exit_code != 0:
        raise BenchFailed(f"bench ps: {system.name} {system.codec}: {job.cause}{collector.last_words()}")
    launch = collector.launch(plan.ranks)
    _check_link(plan, system, launch)
    return launch


def _check_link(plan: Plan, system: System, launch: Launch) -> None:
    """Finds traffic that by-passed the shaped links: what a worker sent must have left its host."""
    if launch.link_bytes is None or launch.sent_bytes is None:
        return
    share = (plan.ranks - 1) / plan.ranks if plan.colocated else 1.0
    expected = share * sum(launch.sent_bytes) / len(launch.sent_bytes)
    if launch.link_bytes < 0.98 * expected:
        given = f"{launch.link_bytes:.0f} bytes left a worker's host in a round"
        raise BenchFailed(
            f"bench ps: {system.name} {system.codec}: {given}, expected {expected:.0f} at least"
        )


def _record(plan: Plan, system: System, launches: list[Launch]) -> dict[str, Any]:
    seconds = [value for launch in launches for value in launch.seconds]
    gradient_gb = plan.ranks * plan.gradient_bytes * len(seconds) / 1e9
    sent = [value for launch in launches for value in launch.sent_bytes or []]
    links = [launch.link_bytes for launch in launches if launch.link_bytes is not None]
    link_bytes = round(statistics.fmean(links)) if links else None
    return {
        "system": system.name,
        "codec": system.codec,
        "reply": system.reply,
        "ranks": plan.ranks,
        "servers": plan.servers,
        "colocated": plan.colocated,
        "transport": plan.transport if system.name == "gradwire" else "zmq",
        "bytes": plan.gradient_bytes,
        "bandwidth": plan.bandwidth,
        "seconds_min": min(seconds),
        "seconds_median": statistics.median(seconds),
        "seconds": seconds,
        "wire_limit_seconds": plan.wire_limit(system.pushed, system.replied),
        "encoded_push_bytes": system.pushed,
        "encoded_reply_bytes": system.replied,
        "bytes_sent_per_rank": round(statistics.fmean(sent)) if sent else link_bytes,
        "link_bytes_sent_per_rank": link_bytes,
        "cpu_seconds_per_gb": sum(launch.cpu_seconds for launch in launches) / gradient_gb,
        "checksum": all(launch.right for launch in launches),
        "encrypted": False,
    }
