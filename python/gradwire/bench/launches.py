"""Runs the systems of a bench in turns, each launch a real job of processes, and keeps what they measured."""

from __future__ import annotations

import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradwire.bench.hosts import Network
from gradwire.bench.plan import RoundPlan
from gradwire.bench.rounds import MARKER, result_file
from gradwire.bench.system import WARM_UP, System
from gradwire.launch.child import Line
from gradwire.launch.supervisor import check_job

_SLOWEST_BYTES_PER_SECOND = 20e6  # of one rank's round, with its check: below this a job has hung
_START_SECONDS = 120.0
_LAST_LINES = 20


class BenchFailed(RuntimeError):
    """A job failed, or its traffic was not what it had to be; the message says which.

    exit_code: what the command is to return: a signal's own where one ended the job.
    """

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Launch:
    """What one job measured over its timed rounds."""

    seconds: list[float]  # per round, of the slowest rank
    sent_bytes: list[int] | None  # per round and rank; None where the system does not tell
    cpu_seconds: float  # of all workers and servers
    server_cpu_seconds: float  # of all servers
    machine_seconds: float  # CPU time of the whole machine while rounds were timed
    link_bytes: float | None  # per round and rank; None where there are no links
    memory_bytes: int  # that rounds have taken, of the rank with the most
    right: bool

    @property
    def mean_sent_bytes(self) -> float | None:
        """Per round and rank."""
        return None if self.sent_bytes is None else statistics.fmean(self.sent_bytes)


class Collector:
    """Answers the marks of one job, and takes its results and its last words."""

    def __init__(self, network: Network, folder: Path) -> None:
        self._network = network
        self._folder = folder
        self._marks: dict[str, tuple[float, float | None]] = {}
        self._last: list[str] = []

    def __call__(self, line: Line) -> None:
        if not line.text.startswith(MARKER):
            self._last = [*self._last, f"{line.role} {line.rank}: {line.text}"][-_LAST_LINES:]
            return
        mark = json.loads(line.text.removeprefix(MARKER))["mark"]
        self._marks[mark] = self._network.server_seconds(), self._network.sent_bytes()
        (self._folder / mark).touch()

    def last_words(self) -> str:
        return "".join(f"\n  | {text}" for text in self._last)

    def launch(self, ranks: int) -> Launch:
        """Sums up a job that has ended well.

        Raises: BenchFailed: a worker left no result.
        """
        files = [file for rank in range(ranks) if (file := result_file(self._folder, rank)).exists()]
        if len(files) != ranks:
            raise BenchFailed(f"{len(files)} of {ranks} workers gave results{self.last_words()}")
        by_round = list(zip(*(json.loads(file.read_text()) for file in files), strict=True))
        alike = all(row["digests"] == rows[0]["digests"] for rows in by_round for row in rows)
        timed = [rows for rows in by_round if rows[0]["timed"]]
        flat = [row for rows in timed for row in rows]
        (servers_before, links_before), (servers, links) = self._marks["begin"], self._marks["end"]
        summing = servers - servers_before
        return Launch(
            seconds=[max(row["seconds"] for row in rows) for rows in timed],
            sent_bytes=None if flat[0]["sent_bytes"] is None else [row["sent_bytes"] for row in flat],
            cpu_seconds=summing + sum(row["cpu_seconds"] for row in flat),
            server_cpu_seconds=summing,
            machine_seconds=sum(rows[0]["machine_seconds"] for rows in timed),
            link_bytes=None if links is None or links_before is None else (links - links_before) / len(flat),
            memory_bytes=max(row["memory_bytes"] for row in flat),
            right=alike and all(row["right"] for rows in by_round for row in rows),
        )


class Interrupted(BenchFailed):
    """A signal ended a job, and with it the bench."""


@dataclass(frozen=True)
class Turns:
    """What came of the systems of a bench, in their order.

    Attributes:
        launches: of each system; none of one that failed.
        failures: of each system that failed, by its place.
        interruption: what ended the bench early; systems may then lack launches without a failure.
    """

    launches: list[list[Launch]]
    failures: dict[int, BenchFailed]
    interruption: Interrupted | None = None

    @property
    def troubles(self) -> list[BenchFailed]:
        """All that went wrong; the first says what the command is to return."""
        return [*([self.interruption] if self.interruption else []), *self.failures.values()]


def take_turns(
    plan: RoundPlan,
    systems: Sequence[System],
    network: Network,
    say: Callable[[str], None],
    check: Callable[[System, Launch], None],
) -> Turns:
    """Launches every system once, then every system again, and so on.

    A system whose job fails is not launched again; the others go on. A signal ends all, and what was measured is kept.

    check: called after each launch; raises BenchFailed where its traffic was not what it had to be.

    Raises: ValueError: a setting of the environment is bad.
    """
    # How many mirrors there are is each system's own.
    settings = plan.environment | {"GRADWIRE_REPLICAS": ""}
    check_job([sys.executable, "-m", "gradwire.bench.worker"], plan.ranks, None, settings)
    launches = plan.launch_count
    counts = [plan.repeat * (i + 1) // launches - plan.repeat * i // launches for i in range(launches)]
    turns = Turns([[] for _ in systems], {})
    for number, count in enumerate(counts, start=1):
        for place, system in enumerate(systems):
            if place in turns.failures:
                continue
            say(f"{system.label}: launch {number} of {launches}, {count} rounds")
            try:
                launch = _run(plan, system, network, count)
                check(system, launch)
            except Interrupted as stopped:
                return replace(turns, interruption=stopped)
            except KeyboardInterrupt:  # between two jobs
                between = Interrupted(f"{plan.command}: stopped by SIGINT", 128 + signal.SIGINT)
                return replace(turns, interruption=between)
            except BenchFailed as failure:
                say(f"{failure}\n{system.label} failed; the others continue")
                turns.launches[place].clear()
                turns.failures[place] = failure
            else:
                turns.launches[place].append(launch)
    return turns


def _run(plan: RoundPlan, system: System, network: Network, count: int) -> Launch:
    network.forget_processes()
    dense = plan.wire_limit(plan.gradient_bytes, plan.gradient_bytes) or 0.0
    round_patience = 10 * dense + plan.ranks * plan.gradient_bytes / _SLOWEST_BYTES_PER_SECOND
    patience = _START_SECONDS + (WARM_UP + count) * round_patience
    with tempfile.TemporaryDirectory(prefix="gradwire-bench-") as folder:
        collector = Collector(network, Path(folder))
        task = system.task(plan.ranks, plan.elements, plan.tensors, count, folder)
        job = system.start(network, task, collector, patience)
        if job.interrupted is not None:
            raise Interrupted(f"{plan.command}: {job.cause}", job.exit_code)
        if job.exit_code != 0:
            raise BenchFailed(f"{plan.command}: {system.label}: {job.cause}{collector.last_words()}")
        try:
            return collector.launch(plan.ranks)
        except BenchFailed as error:
            raise BenchFailed(f"{plan.command}: {system.label}: {error}") from None


def records_of(
    turns: Turns,
    systems: Sequence[System],
    record_of: Callable[[System, Sequence[Launch]], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Returns a record for each system that was measured or failed; of one that failed "failure" says why, and figures
    are absent."""
    rows = []
    for place, (system, launches) in enumerate(zip(systems, turns.launches, strict=True)):
        if (failure := turns.failures.get(place)) is not None:
            named = {"system": system.name, "codec": system.codec, "reply": system.reply}
            rows.append(named | {"label": system.label, "failure": str(failure)})
        elif launches:
            rows.append(record_of(system, launches) | {"label": system.label, "failure": None})
    return rows


def record(plan: RoundPlan, system: System, launches: Sequence[Launch]) -> dict[str, Any]:
    """Returns what the records of both benches have in common."""
    seconds = [value for launch in launches for value in launch.seconds]
    gradient_gb = plan.ranks * plan.gradient_bytes * len(seconds) / 1e9
    sent = [launch.mean_sent_bytes for launch in launches if launch.mean_sent_bytes is not None]
    links = [launch.link_bytes for launch in launches if launch.link_bytes is not None]
    link_bytes = round(statistics.fmean(links)) if links else None
    return {
        "system": system.name,
        "codec": system.codec,
        "reply": system.reply,
        "ranks": plan.ranks,
        "servers": system.servers,
        "bytes": plan.gradient_bytes,
        "tensors": plan.tensors,
        "fused": system.fused,
        "bandwidth": plan.bandwidth,
        "transport": system.transport,
        "seconds_min": min(seconds),
        "seconds_median": statistics.median(seconds),
        "seconds": seconds,
        "launch_medians": [statistics.median(launch.seconds) for launch in launches],
        "wire_limit_seconds": plan.wire_limit(system.pushed, system.replied),
        "encoded_push_bytes": system.pushed,
        "encoded_reply_bytes": system.replied,
        "bytes_sent_per_rank": round(statistics.fmean(sent)) if sent else link_bytes,
        "link_bytes_sent_per_rank": link_bytes,
        "cpu_seconds_per_gb": sum(launch.cpu_seconds for launch in launches) / gradient_gb,
        "server_cpu_seconds_per_gb": sum(launch.server_cpu_seconds for launch in launches) / gradient_gb,
        "machine_cpu_seconds_per_gb": sum(launch.machine_seconds for launch in launches) / gradient_gb,
        "memory_bytes_per_rank": max(launch.memory_bytes for launch in launches),
        "checksum": all(launch.right for launch in launches),
        "encrypted": plan.encrypt and system.name == "gradwire",
    }
