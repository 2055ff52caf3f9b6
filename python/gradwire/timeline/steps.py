"""Finds the steps in a timeline: a worker's step begins when a key comes again that it has given before.

So nothing has to be told of forward or backward: what a step takes is the time between two such beginnings.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gradwire.timeline.span import Process, Span, Timeline

Interval = tuple[int, int]


@dataclass
class Step:
    """One step of one worker. number: the round of its keys, or the count of steps where those differ.

    Attributes:
        begin, end: nanoseconds; of the last step the end is that of its last span: whatever the worker computed after
            that is not known.
        spans: what happened to its partitions here, in order of begin.
        is_last: so its end is not a step's.
    """

    worker: int
    number: int
    begin: int
    end: int
    is_last: bool = False
    spans: list[Span] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) * 1e-9

    def of(self, *stages: str) -> list[Interval]:
        return [(span.begin, span.end) for span in self.spans if span.stage in stages]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the intervals that cover the same times, apart and in order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def covered_seconds(intervals: Iterable[Interval]) -> float:
    """Returns how long at least one of the intervals lasts."""
    return sum(end - begin for begin, end in union(intervals)) * 1e-9


def users_tier(timeline: Timeline) -> str:
    """Returns the tier in which workers' own calls are: that of the host, where those of a host sum first."""
    return "host" if any(s.tier == "host" and s.stage == "ready" for s in timeline.spans) else "job"


def steps_of(timeline: Timeline) -> dict[int, list[Step]]:
    """Finds every worker's steps, in order."""
    tier = users_tier(timeline)
    by_worker: dict[int, list[Span]] = {}
    for span in timeline.spans:
        if span.process.role == "worker":
            by_worker.setdefault(span.process.rank, []).append(span)
    return {worker: _steps(worker, spans, tier) for worker, spans in sorted(by_worker.items())}


def _steps(worker: int, spans: Sequence[Span], tier: str) -> list[Step]:
    rounds: list[list[Span]] = []  # of each step, what became ready
    seen: set[tuple[str, int]] = set()
    for span in spans:
        if span.stage != "ready" or span.tier != tier:
            continue
        if not rounds or (span.key, span.offset) in seen:
            rounds.append([])
            seen.clear()
        seen.add((span.key, span.offset))
        rounds[-1].append(span)
    begins = [ready[0].begin for ready in rounds]
    numbers = [ready[0].step for ready in rounds]
    if any(later <= earlier for earlier, later in itertools.pairwise(numbers)):
        numbers = list(range(len(rounds)))
    steps = [Step(worker, number, begin, begin) for number, begin in zip(numbers, begins, strict=True)]
    for step, begin in zip(steps, begins[1:], strict=False):
        step.end = begin
    step_of = {
        (s.tier, s.key, s.step): step for step, ready in zip(steps, rounds, strict=True) for s in ready
    }
    for span in spans:
        found = step_of.get((span.tier, span.key, span.step))
        if found is None and steps:  # of the other tier
            found = steps[max(0, bisect_right(begins, span.begin) - 1)]
        if found is not None:
            found.spans.append(span)
    if steps:
        steps[-1].is_last = True
        steps[-1].end = max(span.end for span in steps[-1].spans)
    return steps


def server_spans(timeline: Timeline) -> dict[Process, list[Span]]:
    """Lists every server's spans."""
    found: dict[Process, list[Span]] = {}
    for span in timeline.spans:
        if span.process.role == "server":
            found.setdefault(span.process, []).append(span)
    return dict(sorted(found.items()))
