"""Makes one timeline of the parts that the processes of a job have written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gradwire.timeline.clocks import ToReference, align
from gradwire.timeline.part import Part, read_part
from gradwire.timeline.span import Process, Span, Timeline

_APART = 1_000_000_000  # nanoseconds between the times of two jobs, at least
# What cannot begin before what: on two processes, so that a wrong clock shows.
_CAUSES = (("send", "server receive"), ("reply send", "receive"))


def merge_folder(folder: Path) -> Timeline:
    """Merges every part in a folder.

    Raises:
        ValueError: there is none, one is damaged, or they are of several jobs.
    """
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise ValueError(
            f"timeline: no process has written a part to {folder}: expected worker-0.jsonl and so on, which a process "
            "with a store (gradwire.kv.create) writes when it ends; a killed process writes none"
        )
    return merge([read_part(path) for path in paths])


def merge(parts: Sequence[Part]) -> Timeline:
    """Merges parts, of which some may be missing. Requires at least one.

    Raises:
        ValueError: they are of several jobs.
    """
    first = parts[0]
    for part in parts:
        if (part.workers, part.servers) != (first.workers, first.servers):
            raise ValueError(
                f"timeline: the parts are of several jobs: {first.process} of {first.workers} workers and "
                f"{first.servers} servers, {part.process} of {part.workers} and {part.servers}; use a new folder for "
                "each job"
            )
    to_reference, unaligned = align(parts)
    alike = _of_the_last_job(parts, to_reference, unaligned)
    if len(alike) < len(parts):
        earlier = sorted(part.process for part in parts if part not in alike)
        parts = alike
        to_reference, unaligned = align(parts)
    else:
        earlier = []
    keys = {known: name for part in parts for known, name in part.keys.items()}
    spans = []
    for part in parts:
        translate = to_reference[part.process]
        spans += [s._replace(begin=translate(s.begin), end=translate(s.end)) for s in part.spans(keys)]
    spans.sort(key=lambda span: span.begin)
    start = spans[0].begin if spans else 0
    stores = [part.store for part in parts if part.process.role == "worker"]
    return Timeline(
        spans=[span._replace(begin=span.begin - start, end=span.end - start) for span in spans],
        workers=first.workers,
        servers=first.servers,
        store=stores[0] if stores else "",
        missing=[str(process) for process in _missing(parts)],
        unaligned=[str(process) for process in unaligned],
        dropped={str(part.process): part.dropped for part in parts if part.dropped},
        clock_error=_clock_error(spans),
        of_another_time=[str(process) for process in earlier],
    )


def _of_the_last_job(
    parts: Sequence[Part], to_reference: Mapping[Process, ToReference], unaligned: Sequence[Process]
) -> list[Part]:
    """Leaves out parts that end before the others begin. Of whom no clock is known, nothing can be said."""
    times = {}
    for part in parts:
        at = [time for row in part.rows for time in row[1:3]] + [reading.at for reading in part.readings]
        if at and part.process not in unaligned:
            translate = to_reference[part.process]
            times[part.process] = (translate(min(at)), translate(max(at)))
    last = 0
    end: int | None = None
    for begin, its_end in sorted(times.values()):
        if end is None or begin > end + _APART:
            last = begin
        end = its_end if end is None else max(end, its_end)
    return [part for part in parts if part.process not in times or times[part.process][0] >= last]


def _missing(parts: Sequence[Part]) -> list[Process]:
    expected = [Process("worker", rank) for rank in range(parts[0].workers)]
    if not any(part.servers_in_workers for part in parts):
        expected += [Process("server", rank) for rank in range(parts[0].servers)]
    there = {part.process for part in parts}
    return [process for process in expected if process not in there]


def _clock_error(spans: Sequence[Span]) -> float:
    """Returns by how many seconds an effect begins before its cause, at worst."""
    causes: dict[tuple[object, ...], int] = {}
    for span in spans:
        for cause, effect in _CAUSES:
            if span.stage == cause:
                causes.setdefault((effect, span.process.rank, span.peer, *span.round_id), span.begin)
    worst = 0
    for span in spans:
        cause_begin = causes.get((span.stage, span.peer, span.process.rank, *span.round_id))
        if cause_begin is not None:
            worst = max(worst, cause_begin - span.begin)
    return worst * 1e-9
