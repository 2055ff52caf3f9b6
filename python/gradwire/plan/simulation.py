"""The simulator, typed: one network, codec and schedule of a layer profile, in simulated time (fusion/simulation.h)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from gradwire import _core
from gradwire.plan.calibration import PLANNED, Calibration
from gradwire.plan.layer_profile import Machine, Profile

Placement = Literal["servers", "beside", "peers", "ring"]
PAYLOAD_SHARE = 0.955  # of a link at MTU 1500: what headers of Ethernet, IP and TCP leave
HEADER_BYTES = 112  # of a frame of ours
SOCKET_BYTES = 256 * 2**10  # that the kernel holds unsent of a connection: transport/zmq/zmq_socket.cpp
_MOST_IN_FLIGHT = 4 * 2**20  # bytes of a connection: Linux's largest send buffer
_SUMS_UNDER_WAY = 16  # of MPI, at most: transport/mpi/mpi_sums.cpp
SUMMED = ("none", "fp16", "bf16")  # by a library; others' payloads it gathers: kvstore/placement/native.cpp


def placement_of(text: str) -> Placement:
    """Raises: ValueError: text is no placement."""
    for placement in get_args(Placement):
        if placement == text:
            known: Placement = placement
            return known
    raise ValueError(
        f"plan: --placement {text} is not a placement: expected one of {', '.join(get_args(Placement))}"
    )


@dataclass(frozen=True)
class Network:
    """workers and servers behind links of `bandwidth` bits a second each way; latency in seconds, one way.

    placement: servers: on hosts of their own; beside: on workers' hosts; peers: one in each worker; ring: a library's
    all-reduce, as of the store allreduce_mpi. netlab: the hosts are namespaces of one machine: servers of their own
    share its cores, too, and a queue stands before each link.
    """

    placement: Placement
    workers: int
    servers: int
    bandwidth: float
    latency: float
    netlab: bool = False

    @property
    def bytes_per_second(self) -> float:
        """Payload that a link carries in each direction."""
        return self.bandwidth / 8 * PAYLOAD_SHARE

    @property
    def queued_bytes(self) -> int:
        """A full connection's share of the queue before a netlab's link, which TCP fills; elsewhere none is known."""
        if not self.netlab:
            return 0
        from gradwire.netlab import QUEUE_SECONDS

        flows = max(self.workers, self.servers) if self.placement == "servers" else 2 * (self.workers - 1)
        share: float = QUEUE_SECONDS * self.bytes_per_second / max(1, flows)
        return min(_MOST_IN_FLIGHT, round(share))

    def machine(self, where: Machine | None, byte_seconds: float) -> _core.CoreModel:
        """Describes the cores that a worker shares. where: None: every thread has one."""
        if where is None:
            return _core.CoreModel(math.inf, 1, 1, 0, 0)
        servers_share = {
            "servers": float(self.netlab),
            "beside": where.workers / self.workers,
            "peers": where.workers / self.workers,
            "ring": float(where.workers),
        }[self.placement]
        return _core.CoreModel(where.cores, where.compute_threads, where.workers, servers_share, byte_seconds)

    @property
    def hosts(self) -> int:
        return self.workers + (self.servers if self.placement == "servers" else 0)


@dataclass(frozen=True)
class Schedule:
    """How gradients travel. Defaults are gradwire's own; codec_threads and server_threads those of two cores.

    credit_bytes: None: that of a library that sums, which takes what it has room for. in_order: as backward() produces
    them, without priorities. per_layer: overlap_step; else forward waits for all. socket_bytes: what the kernel holds
    unsent of a connection, which urgent parts wait for, too; 0: a schedule by itself, with nothing below the engine.
    """

    partition_bytes: int = 2**20
    credit_bytes: int | None = 256 * 2**10
    fusion_bytes: int = 256 * 2**10
    shard_bound: int = 131_072
    in_order: bool = False
    per_layer: bool = True
    socket_bytes: int = SOCKET_BYTES
    whole: bool = False  # every server's share of a tensor travels as one part
    codec_threads: int = 1
    server_threads: int = 1

    @property
    def partition_elements(self) -> int:
        """Most in a part."""
        return 2**62 if self.whole else self.partition_bytes // 4

    def where_a_library_sums(self) -> Schedule:
        """As those stores send, which have neither priorities nor overlap_step, and one thread to answer."""
        return replace(self, credit_bytes=None, in_order=True, per_layer=False, server_threads=1)


class ElementCost(NamedTuple):
    """Of an element: bytes of the push and of the reply; seconds to encode, to decode the reply, and to sum."""

    push: float
    reply: float
    encode: float
    decode: float
    total: float


@dataclass(frozen=True)
class Variant:
    """A codec and the reply of its servers. exact: sums of 2bit's integers."""

    codec: str
    reply: Literal["exact", "own"] = "own"

    @classmethod
    def parse(cls, spec: str) -> Variant:
        """Reads "fp16", "2bit" (replies are exact) or "2bit:reply=2bit": PLANNED codecs, with their own parameters.

        Raises: ValueError: something else.
        """
        name, _, option = spec.partition(":")
        replies = ("", f"reply={name}", *(["reply=exact"] if name == "2bit" else []))
        if name not in PLANNED or option not in replies:
            raise ValueError(
                f"plan: --codec {spec} is not planned: expected one of {', '.join(PLANNED)}, each with its own "
                "parameters, or 2bit:reply=2bit"
            )
        return cls(name, "exact" if name == "2bit" and option != "reply=2bit" else "own")

    def __str__(self) -> str:
        return "2bit:reply=2bit" if self.codec == "2bit" and self.reply == "own" else self.codec

    @property
    def lossy(self) -> bool:
        return self.codec != "none"

    def goes_with(self, placement: Placement) -> bool:
        """Whether it is known what the codec costs there."""
        return placement != "ring" or self.codec in SUMMED

    def costs(self, workers: int, calibration: Calibration, placement: Placement) -> _core.CodecCosts:
        """As element_cost(), for the core."""
        return _core.CodecCosts(*self.element_cost(workers, calibration, placement))

    def element_cost(self, workers: int, calibration: Calibration, placement: Placement) -> ElementCost:
        """What an element costs. A library that sums (ring) adds while it receives; of its sum each worker makes itself
        the answer that a server would have made of all payloads.

        Raises: ValueError: as goes_with() has it; or a codec without calibration.
        """
        if not self.goes_with(placement):
            raise ValueError(
                f"plan: a ring adds what {', '.join(SUMMED)} send; what its library does with {self} is not simulated"
            )
        speed = calibration.speed(self.codec)
        push = speed.bits / 8
        reply = math.ceil(math.log2(2 * workers + 1)) / 8 if self.reply == "exact" else push
        encode = speed.encode_with_residual_seconds if self.lossy else 0.0  # none: sent as it lies in memory
        payloads = 1 if placement == "ring" else workers
        total = speed.sum_seconds + payloads * speed.sum_seconds_per_worker
        if self.lossy:
            total += speed.encode_seconds if self.reply == "exact" else speed.encode_with_residual_seconds
        return ElementCost(push, reply, encode, speed.decode_seconds, total)


FREE = _core.CodecCosts(4, 4, 0, 0, 0)  # float32, codecs and sums that cost nothing: what bounds are made of
FREE_MESSAGES = Calibration("nothing", {}, message_seconds=0, round_trip_seconds=0, codecs=())


def plan_limits(schedule: Schedule, push_bytes: float) -> _core.PlanLimits:
    """Says how layers are fused, cut and placed. push_bytes: of an element, encoded."""
    shortest = _core.shortest_piece(_core.UNIT_ELEMENTS, round(_core.UNIT_ELEMENTS * push_bytes))
    return _core.PlanLimits(
        schedule.partition_elements,
        1 if schedule.whole else _core.UNIT_ELEMENTS,
        1 if schedule.whole else _core.PlanLimits.LEAST_PIECES,
        1 if schedule.whole else shortest,
        schedule.shard_bound,
        schedule.fusion_bytes,
    )


def setup(
    profile: Profile,
    network: Network,
    costs: _core.CodecCosts,
    schedule: Schedule,
    calibration: Calibration = FREE_MESSAGES,
    steps: int = 3,
) -> _core.SimulationSetup:
    """Describes a job to the core. steps: measured, after one to warm up."""
    topologies = {
        "servers": _core.Topology.SERVERS_APART,
        "beside": _core.Topology.SERVERS_BESIDE,
        "peers": _core.Topology.SERVERS_BESIDE,
        "ring": _core.Topology.RING,
    }
    servers = {"peers": network.workers, "ring": 1}.get(network.placement, network.servers)
    order = _core.SendOrder.FIFO if schedule.in_order else _core.SendOrder.PRIORITY
    forward = _core.NextForward.PER_LAYER if schedule.per_layer else _core.NextForward.DRAINED
    part_bytes = HEADER_BYTES + math.ceil(
        min(schedule.partition_elements, profile.elements) * costs.push_bytes
    )
    credit = (
        _SUMS_UNDER_WAY * part_bytes
        if schedule.credit_bytes is None
        else schedule.credit_bytes + schedule.socket_bytes + network.queued_bytes
    )
    return _core.SimulationSetup(
        layers=[
            _core.SimulatedLayer(x.elements, x.forward_seconds, x.backward_seconds) for x in profile.layers
        ],
        network=_core.NetworkModel(
            topologies[network.placement],
            network.workers,
            servers,
            network.bytes_per_second,
            network.latency,
            calibration.message_seconds,
            calibration.wakeup_seconds,
        ),
        codec=costs,
        limits=plan_limits(schedule, costs.push_bytes),
        message_bytes=HEADER_BYTES,
        credit_bytes=credit,
        order=order,
        next_forward=forward,
        codec_threads=schedule.codec_threads,
        server_threads=schedule.server_threads,
        steps=steps,
        machine=network.machine(profile.machine, calibration.byte_seconds),
    )


def predict(
    profile: Profile,
    network: Network,
    variant: Variant,
    schedule: Schedule,
    calibration: Calibration,
) -> _core.Simulated:
    """Simulates steps of a job, which wait for the slowest worker.

    Raises: ValueError: numbers that no job has, or a codec without calibration.
    """
    costs = variant.costs(network.workers, calibration, network.placement)
    reached = replace(network, latency=network.latency + calibration.hop_seconds)
    slowest = profile.of_slowest(network.workers)
    return _core.simulate(setup(slowest, reached, costs, schedule, calibration))


def bound(
    profile: Profile, network: Network, variant: Variant, calibration: Calibration, schedule: Schedule
) -> float:
    """Seconds a step that no schedule of the same bytes can beat, codecs costing nothing.

    Of schedule it counts only whether forward waits for each layer or for all.
    """
    costs = variant.costs(network.workers, calibration, network.placement)
    return _core.least_step_seconds(setup(profile.of_slowest(network.workers), network, costs, schedule))
