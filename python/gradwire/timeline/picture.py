"""Draws one step of a timeline: a lane for each stage of each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.chart import Lane, lane_chart, standalone
from gradwire.timeline.span import IN_ORDER, Process, Span, Timeline
from gradwire.timeline.steps import Step, server_spans, steps_of, union
from gradwire.units import format_duration

# One colour for what is alike: codec, waiting in queues, wire, the server's sums, the caller's waiting.
_COLOURS = {
    **dict.fromkeys(("encode", "decode", "reply encode"), 0),
    "sum": 3,
    **dict.fromkeys(("ready", "queue", "receive", "server receive", "reply queue"), 5),
    **dict.fromkeys(("send", "reply send"), 2),
    "wait": 1,
}


def draw(timeline: Timeline, number: int | None) -> str:
    """Returns the text of an .svg file.

    Args:
        number: of the step; None: the one in the middle, which is neither a first nor a last one.

    Raises:
        ValueError: there is no such step.
    """
    steps = {worker: _pick(found, number) for worker, found in steps_of(timeline).items() if found}
    rounds = {span.round_id for step in steps.values() for span in step.spans}
    shown: dict[Process, Sequence[Span]] = {
        Process("worker", worker): step.spans for worker, step in steps.items()
    }
    for process, spans in server_spans(timeline).items():
        shown[process] = [span for span in spans if span.round_id in rounds]
    start = min(step.begin for step in steps.values())
    groups = [(str(process), _lanes(spans, start)) for process, spans in shown.items()]
    name = next(iter(steps.values())).number
    return standalone(lane_chart(groups, f"time in step {name} of {timeline.store}", format_duration))


def _pick(steps: Sequence[Step], number: int | None) -> Step:
    if number is None:
        return steps[len(steps) // 2 if len(steps) > 2 else 0]
    return next(step for step in steps if step.number == number)


def _lanes(spans: Sequence[Span], start: int) -> list[Lane]:
    by_stage: Mapping[str, list[Span]] = {stage: [] for stage in IN_ORDER}
    for span in spans:
        by_stage[span.stage].append(span)
    lanes = []
    for stage, found in by_stage.items():
        if found:
            covered = union((span.begin - start, span.end - start) for span in found)
            seconds = tuple((begin * 1e-9, end * 1e-9) for begin, end in covered)
            lanes.append(Lane(stage, seconds, _COLOURS[stage]))
    return lanes
