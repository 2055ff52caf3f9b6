"""Controller: chooses, while a model trains, which codec each of its tensors travels by.

    sample    20 steps: gradients of all workers are sampled, and rank 0 finds each candidate's error on them
    decide    the link and the codecs are measured; rank 0 simulates what the budget admits, and tells all ranks
    prove     the chosen plan, none and fp16 take turns; measured steps decide, and what was wrong is taken back.
              A baseline that is known to be far slower gets none
    watch     the link is measured now and then; when it has changed by a fifth, or after long, all begins again

Threading: one thread at a time, that which ends steps. All that ranks must agree in, rank 0 tells; calls of advance()
are a collective.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire import _core
from gradwire.controller import accuracy, codec_cost
from gradwire.controller.budget import Budget
from gradwire.controller.choice import Choice, choose
from gradwire.controller.error import MOST_WORKERS, ErrorMeter, blocks
from gradwire.controller.plan import BASELINES, CANDIDATES, Plan, Tensor, lossiness
from gradwire.controller.prediction import Job, network_of
from gradwire.controller.step_clock import Step, StepClock, layers
from gradwire.controller.trial import Trial
from gradwire.plan.calibration import Calibration
from gradwire.plan.simulation import Placement, Schedule
from gradwire.settings.units import format_bytes, format_duration
from gradwire.stores import measured_link
from gradwire.stores.placement import Link

if TYPE_CHECKING:
    from gradwire.kv import KVStore

_CHOSEN = "auto"  # the name of a plan that is no baseline among a trial's arms


@dataclass(frozen=True)
class Pace:
    """How many steps things take, at least.

    Attributes:
        settling: of those sampled, not timed: the first steps make buffers and connections.
        block: of one arm in a trial, the first of which is not timed: buffers are made in it.
        link_change: share of the rate from which on a link is another one.
        overhead: share of the time that looking at the link may take, and that beginning anew may.
    """

    sampled: int = 20
    settling: int = 2
    block: int = 4
    link_every: int = 200
    review_every: int = 2000
    link_change: float = 0.2
    overhead: float = 0.005


@dataclass(frozen=True)
class Instruments:
    """What is measured by what."""

    clock: Callable[[], float] = time.perf_counter
    link: Callable[[_core.Engine], Link] = measured_link.measure
    codecs: Callable[[], Calibration] = codec_cost.measure


@dataclass(frozen=True)
class Options:
    """What the job is.

    Attributes:
        schedule: how it sends.
        placement: where it sums.
        optimizer: what steps on the means; None: not known.
    """

    budget: Budget
    schedule: Schedule
    placement: Placement
    optimizer: accuracy.Optimizer | None = None
    pace: Pace = field(default_factory=Pace)
    instruments: Instruments = field(default_factory=Instruments)


class Controller:
    """The choice for one model.

    Attributes:
        plan: what the step that comes next is to travel by.
        needs_quiet: the next advance() measures the link or changes codecs: no round may be under way then.
    """

    def __init__(self, store: KVStore, options: Options) -> None:
        self._store = store
        self._options = options
        self._costs = accuracy.load(options.optimizer)
        self._start = accuracy.begins_with(options.budget, self._costs)
        self._tensors: tuple[Tensor, ...] = ()
        self._blocks: list[tuple[tuple[int, int], ...]] = []
        self._samples: np.ndarray | None = None  # of the step in progress, while gradients are sampled
        self._link: Link | None = None  # that the plan was chosen for
        self._refuted: set[Plan] = set()  # measured to lose on this link
        self._calibration: Calibration | None = None
        self._step = 0
        self._busy = 0.0  # seconds in advance()
        self._choosing = 0.0  # of these, when the last choice began
        self._link_seconds = 0.0  # that measuring the link has taken
        self._is_watching = False
        self._life: Generator[Plan, Step, None] | None = None
        self._clock = self._new_clock()
        self.plan = Plan(())
        self.needs_quiet = False

    @property
    def start(self) -> str:
        """The candidate that tensors begin with."""
        return self._start

    # -- what the front end calls ----------------------------------------------------------------------

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Takes tensors in, behind those there are; gradients are then sampled anew."""
        shared = [c for t, c in zip(self._tensors, self.plan.codecs, strict=True) if t.free and t.together]
        codecs = list(Plan.uniform(self._start, tensors).codecs)
        if shared:
            codecs = [shared[0] if t.free and t.together else c for t, c in zip(tensors, codecs, strict=True)]
        self._tensors += tuple(tensors)
        self._blocks = blocks(self._tensors)
        self.plan = Plan((*self.plan.codecs, *codecs))
        self._begin(self._lives(self.plan))

    def ready(self, index: int) -> tuple[tuple[int, int], ...]:
        """Notes that a gradient is about to be sent. Returns which of its elements put() is to be given, if any."""
        self._clock.ready(index, self._options.instruments.clock(), self._store.waited_seconds)
        return () if self._samples is None else self._blocks[index]

    def put(self, index: int, values: np.ndarray) -> None:
        """Takes the elements that ready() asked for, one block behind the other, as float32."""
        assert self._samples is not None
        begin = sum(end - start for own in self._blocks[:index] for start, end in own)
        self._samples[begin : begin + values.size] = values

    def advance(self) -> Plan:
        """Ends a step, and returns what the next one is to travel by. A collective.

        Raises:
            gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
        """
        assert self._life is not None
        now = self._options.instruments.clock
        began = now()
        self._step += 1
        self.plan = self._life.send(self._clock.end(began))
        self._busy += now() - began
        self._clock = self._new_clock()
        return self.plan

    def state(self) -> dict[str, Any]:
        """Returns what was chosen, for a checkpoint: text and numbers."""
        codecs = {tensor.name: codec for tensor, codec in zip(self._tensors, self.plan.codecs, strict=True)}
        budget = str(self._options.budget)
        return {"step": self._step, "budget": budget, "is_proven": self._is_watching, "codecs": codecs}

    def load(self, state: Mapping[str, Any]) -> Plan:
        """Goes on from what state() returned, and returns the plan. What was saved before a trial had ended, for
        another budget or for other tensors is left, and all is chosen anew.
        """
        self._step = int(state["step"])
        known: Mapping[str, str] = state["codecs"]
        fits = state["budget"] == str(self._options.budget) and set(CANDIDATES).issuperset(known.values())
        if state["is_proven"] and fits and list(known) == [tensor.name for tensor in self._tensors]:
            self._samples = None
            self._begin(self._lives(Plan(tuple(known.values())), is_proven=True))
        return self.plan

    # -- one life: a generator that yields what each step is to travel by ------------------------------

    def _begin(self, life: Generator[Plan, Step, None]) -> None:
        self._life = life
        self.plan = next(life)

    def _lives(self, plan: Plan, *, is_proven: bool = False) -> Generator[Plan, Step, None]:
        in_force = plan if is_proven else None
        if is_proven:
            is_proven = yield from self._watch(plan)
        while True:
            choice = yield from self._choose(in_force, plan)
            plan = in_force = yield from self._prove(choice, plan, is_proven=is_proven)
            is_proven = yield from self._watch(plan)

    def _choose(self, in_force: Plan | None, plan: Plan) -> Generator[Plan, Step, Choice]:
        """Samples gradients under a plan, and has rank 0 choose."""
        self._choosing = self._busy
        self._is_watching = False
        options = self._options
        may_fit = accuracy.possible(options.budget, self._costs)
        meter = ErrorMeter(self._tensors, may_fit)
        steps = []
        for number in range(options.pace.sampled):
            self._samples = np.zeros(meter.elements, np.float32)
            self.needs_quiet = number == options.pace.sampled - 1
            step = yield plan
            if number >= options.pace.settling:
                steps.append(step)
            if (samples := self._gather_samples()) and self._store.rank == 0:
                meter.add(samples)
        self._samples = None
        self._link = self._agreed_link()
        return self._decide(self._link, steps, meter, in_force)

    def _prove(self, choice: Choice, before: Plan, *, is_proven: bool) -> Generator[Plan, Step, Plan]:
        """Has the chosen plan and the baselines take turns, and returns the one to keep.

        Args:
            is_proven: the plan before has won on this link already.
        """
        if (is_proven and choice.plan == before) or choice.plan in self._refuted:
            return before
        arms = {name: Plan.uniform(name, self._tensors) for name in BASELINES if name in choice.predicted}
        chosen = next((name for name, plan in arms.items() if plan == choice.plan), _CHOSEN)
        arms.setdefault(chosen, choice.plan)
        if len(arms) == 1:
            return choice.plan
        trial = Trial(
            chosen,
            {name: lossiness(plan.worst) for name, plan in arms.items()},
            {chosen: choice.seconds} | choice.predicted,
        )
        while order := self._agree({"next": trial.next_round()})["next"]:
            seconds = []
            for arm in order:
                seconds.append((yield from self._block(arms[arm])))
            slowest = self._store.collectives.all_reduce(np.array(seconds), op="max")
            trial.add(dict(zip(order, slowest.tolist(), strict=True)))
        best: str = self._agree({"best": trial.best()})["best"]
        if best != chosen:
            self._refuted.add(choice.plan)
        self._tell(_verdict(chosen, best, arms, choice, trial.seconds(), self._tensors))
        return arms[best]

    def _block(self, plan: Plan) -> Generator[Plan, Step, float]:
        """Takes some steps under a plan; returns the seconds of one."""
        times = []
        for number in range(self._options.pace.block):
            self.needs_quiet = number == self._options.pace.block - 1
            step = yield plan
            times.append(step.seconds)
        return statistics.median(times[1:])

    def _watch(self, plan: Plan) -> Generator[Plan, Step, bool]:
        """Keeps a plan until the link is another one, or for long. Returns whether the link is the same."""
        self._is_watching = True
        link_every, review_every = self._intervals((yield from self._block(plan)))
        for number in itertools.count(1):
            self.needs_quiet = number % link_every == 0
            yield plan
            if number % link_every == 0 and self._has_changed(self._agreed_link()):
                self._refuted.clear()
                return False
            if number >= review_every:
                return True
        raise AssertionError("itertools.count() has no end")

    def _intervals(self, step_seconds: float) -> tuple[int, int]:
        """Steps between looks at the link, and until all begins anew: those of the pace, or as many more as keep what
        these take below its overhead.
        """
        pace = self._options.pace
        allowed = max(pace.overhead * step_seconds, 1e-9)
        link_every = max(pace.link_every, math.ceil(self._link_seconds / allowed))
        review_every = max(pace.review_every, math.ceil((self._busy - self._choosing) / allowed))
        told = self._agree({"link_every": link_every, "review_every": review_every})
        return int(told["link_every"]), int(told["review_every"])

    # -- what ranks do together ------------------------------------------------------------------------

    def _gather_samples(self) -> list[np.ndarray]:
        """Returns the first workers' samples of the step that has ended."""
        assert self._samples is not None
        own = self._samples if self._store.rank < MOST_WORKERS else self._samples[:0]
        gathered: list[np.ndarray] = self._store.collectives.all_gather(own)
        return gathered[:MOST_WORKERS]

    def _agreed_link(self) -> Link:
        """Measures the link; what rank 0 has found counts."""
        instruments = self._options.instruments
        began = instruments.clock()
        own = instruments.link(self._store.engine)
        self._link_seconds = instruments.clock() - began
        return Link(**self._agree(asdict(own)))

    def _has_changed(self, link: Link) -> bool:
        if self._link is None:  # of a checkpoint: it may have been of another network
            self._link = link
            return False
        before, now = self._link.bytes_per_second, link.bytes_per_second
        changed = bool(
            self._agree({"changed": abs(now / before - 1) > self._options.pace.link_change})["changed"]
        )
        if changed:
            was = f"{format_bytes(before)}/s"
            self._tell(
                {"event": "link", "reason": f"the link gives {_rate(link)}, it gave {was}: sampling anew"}
            )
        return changed

    def _decide(self, link: Link, steps: Sequence[Step], meter: ErrorMeter, in_force: Plan | None) -> Choice:
        told: dict[str, Any] = {}
        if self._store.rank == 0:
            choice = self._choice(link, steps, meter, in_force)
            told = asdict(choice) | {"plan": choice.plan.codecs}
        told = self._agree(told)
        choice = Choice(**{**told, "plan": Plan(tuple(told["plan"]))})
        where = f"a link of {_rate(link)}, budget {self._options.budget}"
        self._tell(
            {
                "event": "chosen",
                "reason": f"{where}: {choice.reason}",
                "codecs": choice.plan.codecs,
                "predicted_seconds": choice.seconds,
                "predicted_baselines": choice.predicted,
                "link": asdict(link),
            }
        )
        return choice

    def _choice(self, link: Link, steps: Sequence[Step], meter: ErrorMeter, in_force: Plan | None) -> Choice:
        """What rank 0 finds best."""
        options = self._options
        engine = self._store.engine
        measured = list(zip(self._tensors, meter.errors(), strict=True))
        admitted = [
            accuracy.admitted(options.budget, self._costs, errors) if tensor.free else frozenset({"none"})
            for tensor, errors in measured
        ]
        if self._calibration is None:
            self._calibration = options.instruments.codecs()
        job = Job(
            self._tensors,
            tuple(layers(self._tensors, steps)),
            network_of(options.placement, engine.num_workers, engine.num_servers, link),
            options.schedule,
            self._calibration,
        )
        choice = choose(self._tensors, admitted, job.step_seconds, in_force)
        free = [errors for tensor, errors in measured if tensor.free]
        left_out = accuracy.left_out(options.budget, self._costs, free)
        return (
            replace(choice, reason=f"{choice.reason}; outside the budget: {left_out}") if left_out else choice
        )

    def _agree(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Returns rank 0's."""
        told: dict[str, Any] = json.loads(
            self._store.engine.all_gather("controller", json.dumps(own).encode())[0]
        )
        return told

    # -- what people are told --------------------------------------------------------------------------

    def _tell(self, decision: Mapping[str, Any]) -> None:
        """Keeps a decision for stats(), and has rank 0 print it."""
        self._store.decisions.append({"step": self._step, **decision})
        if self._store.rank == 0:
            text = f"gradwire: compression auto, step {self._step}: {decision['reason']}"
            print(text, file=sys.stderr, flush=True)

    def _new_clock(self) -> StepClock:
        return StepClock(self._options.instruments.clock(), self._store.waited_seconds)


def _rate(link: Link) -> str:
    return f"{format_bytes(link.bytes_per_second)}/s and {format_duration(link.latency)}"


def _verdict(
    chosen: str,
    best: str,
    arms: Mapping[str, Plan],
    choice: Choice,
    measured: Mapping[str, float],
    tensors: Sequence[Tensor],
) -> dict[str, Any]:
    """Puts a trial into words."""
    others = ", ".join(f"{arm} {format_duration(s)}" for arm, s in measured.items() if arm != chosen)
    taken = f"measured {format_duration(measured[chosen])} a step ({others})"
    if best == chosen:
        event, reason = "kept", f"kept: {taken}"
    else:
        event = "reverted"
        expected = f"where {format_duration(choice.seconds)} was expected"
        reason = f"back to {best}: {arms[chosen].describe(tensors)} {taken}, {expected}"
    return {
        "event": event,
        "reason": reason,
        "codecs": arms[best].codecs,
        "measured_seconds": dict(measured),
    }
