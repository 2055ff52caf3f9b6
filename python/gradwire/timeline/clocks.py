"""Puts the times of all processes on one clock, from what the workers read of the servers' clocks.

A reading's error is at most half its round trip (Mills, "Internet time synchronization: the Network Time Protocol",
1991, section 3). Processes that no worker has compared directly are reached over others: by the way whose round trips
sum to the least.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gradwire.timeline.part import Part, Reading
from gradwire.timeline.span import Process

ToReference = Callable[[int], int]  # nanoseconds by a process's clock -> by the reference's


@dataclass(frozen=True)
class Link:
    """How a server's clock stands to a worker's: ahead nanoseconds at a time of the worker's, and drifting."""

    ahead: int
    at: int
    drift: float  # nanoseconds per nanosecond
    round_trip: int

    def to_server(self, time: int) -> int:
        return time + self.ahead + round(self.drift * (time - self.at))

    def to_worker(self, time: int) -> int:
        since = (time - self.ahead - self.at) / (1 + self.drift)
        return self.at + round(since)


def fit(readings: Sequence[Reading]) -> Link:
    """Makes a link of all readings of one server by one worker: through the best, and with a drift only where another
    reading differs from it by more than their errors. Requires at least one."""
    best = min(readings, key=lambda reading: reading.round_trip)
    drift = 0.0
    for other in readings:
        certain = abs(other.ahead - best.ahead) > (other.round_trip + best.round_trip) / 2
        if certain and other.at != best.at:
            drift = (other.ahead - best.ahead) / (other.at - best.at)
    return Link(best.ahead, best.at, drift, best.round_trip)


def align(parts: Sequence[Part]) -> tuple[dict[Process, ToReference], list[Process]]:
    """Finds for each part how its times become the reference's, which is the first worker with a part.

    Returns: the functions, by process; and the processes of which nobody knows how their clocks stand. Their own first
        span is then taken to be as early as the reference's.
    """
    reference = min(parts, key=lambda part: (part.process.role != "worker", part.process.rank))
    known = _shortest_ways(_links(parts), reference.process)
    unknown = []
    for part in parts:
        if part.process in known:
            continue
        if part.boot and part.boot == reference.boot:  # one machine has one steady clock
            known[part.process] = lambda time: time
        else:
            unknown.append(part.process)
            known[part.process] = _beginning_with(part, reference)
    return known, unknown


def _links(parts: Sequence[Part]) -> Mapping[Process, list[tuple[Process, int, ToReference]]]:
    """Lists for each process from which others its clock can be translated: (other, cost, other's to its own)."""
    links: dict[Process, list[tuple[Process, int, ToReference]]] = {}
    for part in parts:
        for server in {reading.server for reading in part.readings}:
            other = Process("worker" if part.servers_in_workers else "server", server)
            if other == part.process:
                continue
            link = fit([reading for reading in part.readings if reading.server == server])
            links.setdefault(part.process, []).append((other, link.round_trip, link.to_worker))
            links.setdefault(other, []).append((part.process, link.round_trip, link.to_server))
    return links


def _shortest_ways(
    links: Mapping[Process, list[tuple[Process, int, ToReference]]], reference: Process
) -> dict[Process, ToReference]:
    """Dijkstra's way, with round trips as lengths."""
    known: dict[Process, ToReference] = {}
    turns = itertools.count()  # functions have no order
    waiting: list[tuple[int, int, Process, ToReference]] = [(0, next(turns), reference, lambda time: time)]
    while waiting:
        cost, _, process, translate = heapq.heappop(waiting)
        if process in known:
            continue
        known[process] = translate
        for other, more, to_process in links.get(process, []):
            if other not in known:
                heapq.heappush(waiting, (cost + more, next(turns), other, _chained(to_process, translate)))
    return known


def _chained(first: ToReference, then: ToReference) -> ToReference:
    return lambda time: then(first(time))


def _beginning_with(part: Part, reference: Part) -> ToReference:
    begins = [row[1] for row in part.rows]
    others = [row[1] for row in reference.rows]
    ahead = min(others) - min(begins) if begins and others else 0
    return lambda time: time + ahead
