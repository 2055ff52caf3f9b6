"""Draws one step of a timeline: a lane for each stage of each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.report.chart import Lane, lane_chart, standalone
from gradwire.settings.units import format_duration
from gradwire.timeline.span import IN_ORDER, Process, Span, Timeline
from gradwire.timeline.steps import server_spans, steps_of, union

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
        number: of the step; None: one in the middle of those that all workers with steps have, which is neither a first
            nor a last one.

    Raises:
        ValueError: no worker has such a step, or there is none that all have.
    """
    found = {worker: {step.number: step for step in steps} for worker, steps in steps_of(timeline).items()}
    if number is None:
        number = _in_the_middle([set(by_number) for by_number in found.values() if by_number])
    steps = {worker: by_number[number] for worker, by_number in found.items() if number in by_number}
    if not steps:
        raise ValueError(
            f"timeline: no worker has a step {number} to draw: expected the number of a traced step"
        )
    rounds = {span.round_id for step in steps.values() for span in step.spans}
    shown: dict[Process, Sequence[Span]] = {
        Process("worker", worker): step.spans for worker, step in steps.items()
    }
    for process, spans in server_spans(timeline).items():
        shown[process] = [span for span in spans if span.round_id in rounds]
    start = min(step.begin for step in steps.values())
    groups = [(str(process), _lanes(spans, start)) for process, spans in shown.items()]
    return standalone(lane_chart(groups, f"time in step {number} of {timeline.store}", format_duration))


def _in_the_middle(numbers: Sequence[set[int]]) -> int:
    common = sorted(set.intersection(*numbers)) if numbers else []
    if not common:
        raise ValueError("timeline: no step was traced on all workers: choose one with --step")
    return common[len(common) // 2 if len(common) > 2 else 0]


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
