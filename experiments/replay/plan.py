"""What is asked of one row, what of that is not as it is by default, and why a row can end without a figure.

Threading: values and pure functions.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

from gradwire import netlab
from gradwire.compress import Compression
from gradwire.plan import calibration, layer_profile
from gradwire.plan.layer_profile import Profile
from gradwire.plan.simulation import Schedule, Variant

from replay import bound
from replay.cpu import Load
from replay.cut import Cut
from replay.rows import CODECS, LOOPBACK, ROUND_BYTES, SCALES, Row
from replay.scale import Scale

# Share of all cores. Runs at 0.95 have given 59 % for a row that is 89 %; those at 0.6 were right.
CPU_LIMIT = 0.7
# Share of a core, of any core and any process in any window of some seconds: README.md, "No figure".
WINDOW_LIMIT = 0.9
VOID_OVER = 0.1  # above what the wire needs for the 400 MB; by measurement up to 7 % are usual
_LEAST_STEPS, _TIMED_SECONDS = 3, 6.0  # of each mode
_ANY_SCALE = 100.0  # of models that rows.SCALES does not know


class ReplayFailed(RuntimeError):
    """A job failed, or its traffic was not what it had to be; the message says which."""


@dataclass(frozen=True)
class Plan:
    """What is asked of one row. steps: timed ones of each mode, after warm_up others, and one more with overlap;
    rounds: of 400 MB, timed. in_order: gradwire sends first what is ready first, and front layers get no priority.
    queue_seconds: how long a packet may wait before a link.
    """

    row: Row
    profile: Profile
    scale: Scale
    steps: int = 3
    warm_up: int = 1
    rounds: int = 2
    in_order: bool = False
    queue_seconds: float = netlab.QUEUE_SECONDS
    cpu_limit: float = CPU_LIMIT
    mxnet_python: Path | None = None

    @property
    def modes(self) -> tuple[str, ...]:
        """The row's, and with one worker the replay's own overhead before them."""
        return (("alone",) if self.row.workers == 1 else ()) + self.row.modes

    @property
    def compression(self) -> Compression:
        return Compression.parse(CODECS[self.row.codec])

    @property
    def slowest_step(self) -> float:
        """Seconds of a step with nothing overlapped and nothing compressed, for deadlines."""
        size = 4.0 * self.profile.elements
        return self.profile.compute_seconds + 2 * bound.link_seconds(self.row, size, size)

    @property
    def tensors(self) -> list[int]:
        """Elements at full size of each layer, and of the 400 MB where rounds are wanted."""
        layers = [layer.elements for layer in self.profile.layers]
        return layers + ([ROUND_BYTES // 4] if self.rounds else [])

    @property
    def cut(self) -> Cut:
        """How gradwire's tensors travel: the layers as one model, the 400 MB as a tensor by itself."""
        layers = tuple(layer.elements for layer in self.profile.layers)
        rounds = ((ROUND_BYTES // 4,),) if self.rounds else ()
        cost = Variant.parse(self.row.codec).element_cost(self.row.workers, calibration.load(), "servers")
        schedule = Schedule(partition_bytes=self.scale.partition_bytes)
        return Cut((layers, *rounds), self.row.owners, schedule, cost, self.scale)

    @property
    def changes(self) -> tuple[str, ...]:
        """Says what is not as it is by default. A run with any is a control beside the row of the table."""
        plain = default(self.row, self.profile)
        said = []
        if self.row.model not in layer_profile.KNOWN or self.profile != layer_profile.find(self.row.model):
            text = layer_profile.text_of(self.profile).encode()
            said.append(f"profile {self.profile.name} {hashlib.sha256(text).hexdigest()[:8]}")
        if self.scale.factor != plain.scale.factor:
            said.append(f"scale {self.scale.factor:.12g}")
        if self.in_order:
            said.append("in order")
        for name, given, usual in (
            ("partition", self.scale.partition_bytes, plain.scale.partition_bytes),
            ("credit", self.scale.credit_bytes, plain.scale.credit_bytes),
        ):
            if given != usual:
                said.append(f"{name} {given} B")
        if self.queue_seconds != plain.queue_seconds:
            said.append(f"queues of {1000 * self.queue_seconds:g} ms")
        for name, given, usual in (("steps", self.steps, plain.steps), ("rounds", self.rounds, plain.rounds)):
            if given != usual:
                said.append(f"{given} {name}")
        if self.cpu_limit != plain.cpu_limit:
            said.append(f"CPU limit {self.cpu_limit:g}")
        return tuple(said)


def default(row: Row, profile: Profile) -> Plan:
    """Returns what is asked of a row where nothing else is wanted."""
    return Plan(
        row=row,
        profile=profile,
        scale=Scale(SCALES.get(row.model, _ANY_SCALE)),
        steps=max(_LEAST_STEPS, math.ceil(_TIMED_SECONDS / profile.compute_seconds)),
        rounds=Plan.rounds if _has_rounds(row) else 0,
    )


def _has_rounds(row: Row) -> bool:
    return row.model == "vgg16" and row.bandwidth == "10gbit"


def why_refused(load: Load, limit: float, polls: bool) -> str | None:
    """Says why a figure is none: the CPU was the limit, or may have been, and not the wire.

    limit: of the mean over all cores; 1: nothing is refused. polls: the system's processes are busy while they wait,
    so that busy seconds say nothing, and only the mean counts.
    """
    advice = (
        "the CPU may have been the limit and not the wire; end what else runs here, or take a larger --scale"
    )
    if limit >= 1:
        return None
    if load.mean > limit:
        return f"the machine's cores were {load.mean:.0%} busy, expected at most {limit:.0%}: {advice}"
    for what, share in (("one core", load.core), (f"one process ({load.process_name})", load.process)):
        if share > WINDOW_LIMIT and not polls:
            return (
                f"{what} was {share:.0%} busy for {load.window_seconds:.1f} s, expected at most "
                f"{WINDOW_LIMIT:.0%} of a core: {advice}"
            )
    return None


def why_void(plan: Plan, round_seconds: float | None) -> str | None:
    """Says why a row of servers on hosts of their own is no figure: its 400 MB took longer than the wire does.

    The wire's time is that of pushing all of it and then fetching all of it, as MXNet has to; who does both at once has
    time to spare. Only there and uncompressed is the wire all that a round waits for: on shared hosts and in
    all-reduces rounds have taken a fifth to a third longer than their wire.
    """
    row = plan.row
    is_wire_alone = row.placement == "servers" and row.codec == "none" and row.bandwidth != LOOPBACK
    if round_seconds is None or not is_wire_alone or plan.cpu_limit >= 1:
        return None
    wire = bound.link_seconds(row, ROUND_BYTES, 0) + bound.link_seconds(row, 0, ROUND_BYTES)
    over = round_seconds / wire - 1
    if over <= VOID_OVER:
        return None
    return (
        f"400 MB took {over:.0%} longer than the wire does there and back, expected at most {VOID_OVER:.0%}: something "
        "else was the limit, and the row is void; end what else runs here, or take a larger --scale"
    )
