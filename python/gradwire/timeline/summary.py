"""Says where the steps of a timeline went: by rank and stage, what compute has hidden, and who was waited for."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from gradwire.timeline.span import IN_ORDER, Process, Span, Timeline
from gradwire.timeline.steps import Step, covered_seconds, server_spans, steps_of, users_tier

_CODEC = ("encode", "decode")
_UNDER_WAY = ("ready", "encode", "queue", "send", "receive", "decode")


@dataclass(frozen=True)
class StageTime:
    """A stage of a rank, per step.

    Attributes:
        seconds: of all its spans together, which may exceed the step where they overlap. busy: during which at least
            one lasted. share: busy, of the step.
    """

    stage: str
    spans: float
    bytes: float
    seconds: float
    busy: float
    share: float


@dataclass(frozen=True)
class RankTime:
    """A rank, per step, in seconds. Of a server only the stages are known, of a worker without steps nothing.

    Attributes:
        step: from one to the next. communication: during which at least one partition was on its way, from ready to
            decoded. exposed: of that, during which the caller was blocked. compute: during which it was not: forward,
            backward, optimizer, data. codec: during which something was encoded or decoded.
    """

    role: str
    rank: int
    steps: int
    step: float | None
    compute: float | None
    communication: float | None
    exposed: float | None
    codec: float | None
    stages: list[StageTime]

    @property
    def hidden_share(self) -> float | None:
        """Which part of communication nobody waited for; None without communication."""
        if not self.communication or self.exposed is None:
            return None
        return max(0.0, 1 - self.exposed / self.communication)


@dataclass(frozen=True)
class WaitingFor:
    """The worker whose contributions came last. seconds: per step, during which at least one partition lacked its
    contribution alone. share: of all partitions, those of which it came last."""

    worker: int
    seconds: float
    share: float


@dataclass(frozen=True)
class LongestTensor:
    """The key that was longest on its way, from ready to decoded, in seconds per step; and the stage that took most."""

    key: str
    worker: int
    seconds: float
    bytes: float
    stage: str


@dataclass(frozen=True)
class FirstStep:
    """What the mean leaves out: keys are declared and connections made in it, and codecs that agree on a scale send
    float32. Means over the workers.

    Attributes:
        pushed_bytes: of payloads of one worker, to all servers. later_pushed_bytes: in a step of the mean.
    """

    seconds: float
    pushed_bytes: float
    later_pushed_bytes: float


@dataclass(frozen=True)
class Summary:
    """What `gradwire timeline` shows.

    Attributes:
        step: the number of the one step asked for; None: the mean of all whole ones but the first.
        first_step: left out of the mean; None: it is not, as one step was asked for, or there is no other.
        unended: workers of which the last step that was traced counts, as it was asked for or is the only one. It ends
            with its last exchange, so that what was computed after that is missing.
    """

    timeline: Timeline
    step: int | None
    first_step: FirstStep | None
    ranks: list[RankTime]
    waiting_for: WaitingFor | None
    longest_tensor: LongestTensor | None
    unended: list[int]

    @property
    def workers(self) -> list[RankTime]:
        return [rank for rank in self.ranks if rank.role == "worker"]

    def mean(self, name: str) -> float | None:
        """Of a field of all workers that know it."""
        values = [value for rank in self.workers if (value := getattr(rank, name)) is not None]
        return statistics.fmean(values) if values else None

    def record(self) -> dict[str, object]:
        """What --json writes: seconds per step."""
        facts = self.timeline.facts()
        return {
            "step_seconds": self.mean("step"),
            "compute": self.mean("compute"),
            "communication": self.mean("communication"),
            "exposed_communication": self.mean("exposed"),
            "hidden_share": self.mean("hidden_share"),
            "codec": self.mean("codec"),
            "waiting_for": None if self.waiting_for is None else asdict(self.waiting_for),
            "longest_tensor": None if self.longest_tensor is None else asdict(self.longest_tensor),
            "step": self.step,
            "first_step": None if self.first_step is None else asdict(self.first_step),
            "steps": max((rank.steps for rank in self.workers), default=0),
            "unended": self.unended,
            "ranks": [asdict(rank) for rank in self.ranks],
            **facts,
        }


def summarise(timeline: Timeline, step: int | None = None) -> Summary:
    """Summarises all whole steps but the first, or one.

    Raises:
        ValueError: there is no step, or no worker has that one; names those there are.
    """
    found = steps_of(timeline)
    chosen = {worker: _choose(steps, step) for worker, steps in found.items()}
    if step is not None and any(found.values()) and not any(chosen.values()):
        there = "; ".join(
            f"worker {worker} has {steps[0].number} to {steps[-1].number}"
            for worker, steps in found.items()
            if steps
        )
        raise ValueError(f"timeline: --step {step}: no worker has such a step; {there}")
    if not any(chosen.values()):
        raise ValueError(
            "timeline: no worker pushed anything while it was traced, so there is no step to show; expected "
            "kv.push, kv.pushpull or a gradwire.torch optimizer's step"
        )
    workers = [_worker_time(worker, steps) for worker, steps in chosen.items()]
    spans_of = {process: _within(spans, chosen) for process, spans in server_spans(timeline).items()}
    servers = [_server_time(process, spans, workers) for process, spans in spans_of.items()]
    return Summary(
        timeline,
        step,
        _first_step(found, chosen) if step is None else None,
        [*workers, *servers],
        _waiting_for(spans_of, chosen),
        _longest_tensor(users_tier(timeline), chosen),
        [worker for worker, steps in chosen.items() if any(step.is_last for step in steps)],
    )


def _choose(steps: Sequence[Step], number: int | None) -> list[Step]:
    if number is not None:
        return [step for step in steps if step.number == number]
    whole = [step for step in steps if not step.is_last]
    return whole[1:] or whole or list(steps)


def _first_step(
    found: Mapping[int, Sequence[Step]], chosen: Mapping[int, Sequence[Step]]
) -> FirstStep | None:
    left_out = [
        steps[0] for worker, steps in found.items() if chosen[worker] and steps[0] not in chosen[worker]
    ]
    if not left_out:
        return None
    counted = [step for steps in chosen.values() for step in steps]
    return FirstStep(
        statistics.fmean(step.seconds for step in left_out),
        statistics.fmean(map(_pushed_bytes, left_out)),
        statistics.fmean(map(_pushed_bytes, counted)),
    )


def _pushed_bytes(step: Step) -> int:
    return sum(span.bytes for span in step.spans if span.stage == "send")


def _worker_time(worker: int, steps: Sequence[Step]) -> RankTime:
    if not steps:
        return RankTime("worker", worker, 0, None, None, None, None, None, [])
    count = len(steps)
    seconds = sum(step.seconds for step in steps) / count
    exposed = sum(covered_seconds(step.of("wait")) for step in steps) / count
    return RankTime(
        role="worker",
        rank=worker,
        steps=len(steps),
        step=seconds,
        compute=max(0.0, seconds - exposed),
        communication=sum(covered_seconds(_under_way(step)) for step in steps) / count,
        exposed=exposed,
        codec=sum(covered_seconds(step.of(*_CODEC)) for step in steps) / count,
        stages=_stage_times([span for step in steps for span in step.spans], count, seconds),
    )


def _under_way(step: Step) -> Iterable[tuple[int, int]]:
    """From the first to the last that is known of each partition: what lies between is the wire and the server."""
    ends: dict[tuple[object, ...], tuple[int, int]] = {}
    for span in step.spans:
        if span.stage in _UNDER_WAY:
            begin, end = ends.get(span.round_id, (span.begin, span.end))
            ends[span.round_id] = (min(begin, span.begin), max(end, span.end))
    return ends.values()


def _server_time(process: Process, spans: Sequence[Span], workers: Sequence[RankTime]) -> RankTime:
    """A server has no steps of its own: they are as many and as long as the workers'."""
    steps = max(rank.steps for rank in workers)
    seconds = statistics.fmean(rank.step for rank in workers if rank.step is not None)
    stages = _stage_times(spans, steps, seconds)
    return RankTime(process.role, process.rank, steps, None, None, None, None, None, stages)


def _stage_times(spans: Sequence[Span], steps: int, step_seconds: float) -> list[StageTime]:
    by_stage: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_stage[span.stage].append(span)
    times = []
    for stage in IN_ORDER:
        if not (found := by_stage[stage]):
            continue
        busy = covered_seconds((span.begin, span.end) for span in found) / steps
        times.append(
            StageTime(
                stage,
                len(found) / steps,
                sum(span.bytes for span in found) / steps,
                sum(span.seconds for span in found) / steps,
                busy,
                busy / step_seconds if step_seconds else 0.0,
            )
        )
    return times


def _within(spans: Iterable[Span], chosen: Mapping[int, Sequence[Step]]) -> list[Span]:
    """The spans of a server that are of the workers' chosen steps."""
    rounds = {span.round_id for steps in chosen.values() for step in steps for span in step.spans}
    return [span for span in spans if span.round_id in rounds]


def _waiting_for(
    servers: Mapping[Process, Sequence[Span]], chosen: Mapping[int, Sequence[Step]]
) -> WaitingFor | None:
    """Compares when each worker's contribution to a partition was there; where no server told, when it was sent."""
    arrivals: dict[tuple[object, ...], dict[int, int]] = defaultdict(dict)
    for process, spans in servers.items():
        for span in spans:
            if span.stage == "server receive":
                at = (process, *span.round_id)
                arrivals[at][span.peer] = span.begin
    if not arrivals:
        for worker, steps in chosen.items():
            for span in (span for step in steps for span in step.spans if span.stage == "send"):
                arrivals[span.round_id][worker] = span.begin
    late: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by worker, while it alone was missing
    complete = [times for times in arrivals.values() if len(times) > 1]
    for times in complete:
        *_, before, after = sorted(times.values())
        worker = max(times, key=lambda rank: times[rank])
        late[worker].append((before, after))
    if not complete:
        return None
    seconds = {worker: covered_seconds(times) for worker, times in late.items()}
    slowest = max(seconds, key=lambda rank: seconds[rank])
    steps_seen = max(len(steps) for steps in chosen.values())
    return WaitingFor(slowest, seconds[slowest] / steps_seen, len(late[slowest]) / len(complete))


def _longest_tensor(tier: str, chosen: Mapping[int, Sequence[Step]]) -> LongestTensor | None:
    found = []
    for worker, steps in chosen.items():
        for key, by_step in _spans_by_key(tier, steps).items():
            spans = [span for spans in by_step for span in spans]
            seconds = statistics.fmean(_seconds_from_first_to_last(spans) for spans in by_step)
            size = _ready_bytes(spans) / len(by_step)
            found.append(LongestTensor(key, worker, seconds, size, _main_stage(spans)))
    return max(found, key=lambda tensor: tensor.seconds, default=None)


def _spans_by_key(tier: str, steps: Sequence[Step]) -> dict[str, list[list[Span]]]:
    """Of each key, for each step in which it was pushed, its spans on the way."""
    by_key: dict[str, list[list[Span]]] = defaultdict(list)
    for step in steps:
        of_step: dict[str, list[Span]] = defaultdict(list)
        for span in step.spans:
            if span.stage in _UNDER_WAY and span.tier == tier:
                of_step[span.key].append(span)
        for key, spans in of_step.items():
            by_key[key].append(spans)
    return by_key


def _seconds_from_first_to_last(spans: Sequence[Span]) -> float:
    return (max(span.end for span in spans) - min(span.begin for span in spans)) * 1e-9


def _ready_bytes(spans: Iterable[Span]) -> int:
    return sum(span.bytes for span in spans if span.stage == "ready")


def _main_stage(spans: Sequence[Span]) -> str:
    """The stage that lasts longest; between send and receive nothing is noted here: the wire, the server, others."""
    times = {
        stage: covered_seconds((s.begin, s.end) for s in spans if s.stage == stage) for stage in _UNDER_WAY
    }
    ends = {span.round_id: span.end for span in spans if span.stage == "send"}
    away = [(ends[s.round_id], s.begin) for s in spans if s.stage == "receive" and s.round_id in ends]
    times["wire and server"] = covered_seconds(pair for pair in away if pair[1] > pair[0])
    return max(times, key=lambda stage: times[stage])
