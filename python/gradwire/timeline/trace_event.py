"""Writes and reads a timeline in the Trace Event format, which ui.perfetto.dev and chrome://tracing open.

A process of the trace is a rank, a thread a stage. Spans of one stage overlap, and those of one thread must not, so a
stage has as many threads as it has spans at once. Arrows lead from a push to the sum and on to the answer.

Source: "Trace Event Format", Google, 2016: duration and flow events, metadata.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gradwire.timeline.span import IN_ORDER, TIERS, Process, Span, Timeline

VERSION = 1
_FIRST_SERVER = 10_001  # pid; workers begin at 1
_LANES = 1_000  # threads that a stage may have


def write_trace(timeline: Timeline, path: Path) -> None:
    """Writes the file. An event stands on a line of its own.

    Raises: OSError: it cannot be written.
    """
    with path.open("w", encoding="utf-8") as file:
        head = {"displayTimeUnit": "ms", "otherData": {"gradwire": {"version": VERSION, **timeline.facts()}}}
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [')
        for index, event in enumerate(events(timeline.spans)):
            file.write((",\n" if index else "\n") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def events(spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    """Yields every event: names of processes and threads, spans, arrows. Requires spans in order of begin."""
    pid_of = {process: _pid(process) for process in sorted({span.process for span in spans})}
    for process, pid in pid_of.items():
        yield _metadata("process_name", pid, 0, name=str(process))
        yield _metadata("process_sort_index", pid, 0, sort_index=pid)
    threads: set[tuple[int, int]] = set()
    lanes = _Lanes()
    begun: set[tuple[object, ...]] = set()
    for span in spans:
        pid, tid = pid_of[span.process], _tid(span, lanes.take(span))
        if (pid, tid) not in threads:
            threads.add((pid, tid))
            yield from _thread(span, pid, tid)
        yield _slice(span, pid, tid)
        yield from _arrow(span, pid, tid, begun)


def _pid(process: Process) -> int:
    return process.rank + (1 if process.role == "worker" else _FIRST_SERVER)


class _Lanes:
    """Gives spans of one stage of one process the first thread that is free."""

    def __init__(self) -> None:
        self._busy: dict[tuple[object, ...], list[tuple[int, int]]] = {}  # (end, lane), a heap
        self._free: dict[tuple[object, ...], list[int]] = {}

    def take(self, span: Span) -> int:
        stage = (span.process, span.stage, span.tier)
        busy, free = self._busy.setdefault(stage, []), self._free.setdefault(stage, [])
        while busy and busy[0][0] <= span.begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (span.end, lane))
        return min(lane, _LANES - 1)


def _tid(span: Span, lane: int) -> int:
    return 1 + (TIERS.index(span.tier) * len(IN_ORDER) + IN_ORDER.index(span.stage)) * _LANES + lane


def _thread(span: Span, pid: int, tid: int) -> Iterator[dict[str, Any]]:
    lane = (tid - 1) % _LANES
    name = span.stage + (" on the host" if span.tier == "host" else "") + (f" {lane + 1}" if lane else "")
    yield _metadata("thread_name", pid, tid, name=name)
    yield _metadata("thread_sort_index", pid, tid, sort_index=tid)


def _metadata(event: str, pid: int, tid: int, **args: object) -> dict[str, Any]:
    return {"ph": "M", "name": event, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _slice(span: Span, pid: int, tid: int) -> dict[str, Any]:
    args = {
        "offset": span.offset,
        "bytes": span.bytes,
        "step": span.step,
        "priority": span.priority,
        "peer": span.peer,
        "tier": span.tier,
    }
    return {
        "ph": "X",
        "name": span.key,
        "cat": span.stage,
        "pid": pid,
        "tid": tid,
        "ts": span.begin / 1e3,
        "dur": (span.end - span.begin) / 1e3,
        "args": args,
    }


def _arrow(span: Span, pid: int, tid: int, begun: set[tuple[object, ...]]) -> Iterator[dict[str, Any]]:
    """Begins an arrow at a worker's send, takes it through the server that has it, and ends it at the answer."""
    worker = span.peer if span.process.role == "server" else span.process.rank
    phase = {"send": "s", "server receive": "t", "reply send": "t", "receive": "f"}.get(span.stage)
    if phase is None:
        return
    flow = (worker, *span.round_id)
    if phase == "s":
        begun.add(flow)
    elif flow not in begun:  # its beginning was not noted
        return
    event = {
        "ph": phase,
        "name": "round",
        "cat": "flow",
        "id": "/".join(map(str, flow)),
        "pid": pid,
        "tid": tid,
    }
    yield event | {"ts": span.begin / 1e3} | ({"bp": "e"} if phase != "s" else {})


def read_trace(path: Path) -> Timeline:
    """Reads what write_trace() wrote.

    Raises:
        ValueError: it is something else, or damaged.
        OSError: it cannot be read.
    """
    expected = "expected what `gradwire run --timeline FILE` writes, or a folder of parts (GRADWIRE_TIMELINE)"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # neither JSON nor text
        raise ValueError(f"timeline: {path} is not complete JSON ({error}): {expected}") from None
    try:
        facts = dict(found["otherData"]["gradwire"])
        if facts.pop("version") != VERSION:
            raise ValueError("another version")
        processes = {
            event["pid"]: event["args"]["name"].split()
            for event in found["traceEvents"]
            if event["ph"] == "M" and event["name"] == "process_name"
        }
        names = {pid: Process(role, int(rank)) for pid, (role, rank) in processes.items()}
        spans = [_span(event, names) for event in found["traceEvents"] if event["ph"] == "X"]
        return Timeline(spans=spans, **facts)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ValueError(
            f"timeline: {path} is JSON but not a trace of gradwire ({type(error).__name__}: {error}): {expected}"
        ) from None


def _span(event: dict[str, Any], processes: dict[int, Process]) -> Span:
    args = event["args"]
    begin = round(event["ts"] * 1e3)
    if event["cat"] not in IN_ORDER:
        raise ValueError(f"stage {event['cat']!r} is not known")
    return Span(
        processes[event["pid"]],
        event["cat"],
        begin,
        begin + round(event["dur"] * 1e3),
        event["name"],
        args["offset"],
        args["bytes"],
        args["step"],
        args["priority"],
        args["peer"],
        args["tier"],
    )
