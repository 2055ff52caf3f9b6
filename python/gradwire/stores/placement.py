"""Which placement sums a round soonest: a model of what each costs, by payload, world size and the measured link.

Pure: no clock, no socket. Links are full duplex, and push and answer overlap. P is the payload in bytes, N the workers,
S the servers, B the link in bytes a second, L its latency:

    peers                    2 (N-1)/N P / B + 2 L
    servers beside workers   ((N-1) + (S-1)) / S P / B + 2 L   (of the hosts that have one; S = N: as peers)
    servers apart            max(1, N/S) P / B + 2 L
    native, below 10 KB      ceil(log2 N) (P / B + L)   (recursive doubling)
    native, else             2 (N-1)/N P / B * k + 2 (N-1) L   (a ring)

10 KB is where Open MPI 4.1 goes from one to the other. k is what its ring takes over the wire's limit: 1.08 with two
ranks and 1.55 with four (100 MB at 1 Gbit, 1.945 s where the limit is 1.257 s); NCCL's is taken as 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gradwire.settings.units import format_bytes, format_duration

Placement = Literal["peers", "servers", "native"]

_RING_FROM_BYTES = 10_000
_MPI_TWO_RANKS, _MPI_MORE_RANKS = 1.08, 1.55


@dataclass(frozen=True)
class Link:
    """What a worker's link gave: bytes per second in each direction, and seconds from one rank to another."""

    bytes_per_second: float
    latency: float


@dataclass(frozen=True)
class Option:
    """A store that this job could use.

    Attributes:
        store: what kv.create takes.
        placement: where it sums.
        servers: processes of their own that sum, where there are any; apart: on hosts without workers.
        library: of placement native.
    """

    store: str
    placement: Placement
    servers: int = 0
    apart: bool = False
    library: Literal["", "mpi", "nccl"] = ""


@dataclass(frozen=True)
class Choice:
    """The option that a job takes, and why, for people."""

    option: Option
    reason: str


def seconds(option: Option, payload_bytes: float, workers: int, link: Link) -> float:
    """Returns what a round takes at least, from every worker's payload to the sum at each; one worker: 0."""
    if workers == 1:
        return 0.0
    if option.placement == "native":
        return _native_seconds(option, payload_bytes, workers, link)
    wire = payload_bytes / link.bytes_per_second
    share = 2 * (workers - 1) / workers
    if option.placement == "servers":
        share = _servers_share(option, workers)
    return share * wire + 2 * link.latency


def _servers_share(option: Option, workers: int) -> float:
    """Payloads that the busiest link carries in one direction."""
    if option.apart:
        return max(1.0, workers / option.servers)
    return ((workers - 1) + (option.servers - 1)) / option.servers


def _native_seconds(option: Option, payload_bytes: float, workers: int, link: Link) -> float:
    wire = payload_bytes / link.bytes_per_second
    if payload_bytes < _RING_FROM_BYTES:
        return math.ceil(math.log2(workers)) * (wire + link.latency)
    over = 1.0 if option.library == "nccl" else _MPI_TWO_RANKS if workers == 2 else _MPI_MORE_RANKS
    return 2 * (workers - 1) / workers * wire * over + 2 * (workers - 1) * link.latency


def choose(options: Sequence[Option], payload_bytes: float, workers: int, link: Link) -> Choice:
    """Takes the soonest; of those within 1 % of it, which no measurement tells apart, the first in the list.

    Raises: ValueError: no option.
    """
    if not options:
        raise ValueError("placement: no store to choose from; expected at least one option")
    costs = [seconds(option, payload_bytes, workers, link) for option in options]
    chosen = next(i for i, cost in enumerate(costs) if cost <= 1.01 * min(costs))
    told = "; ".join(
        f"{option.placement} ({option.store}) {format_duration(cost)}"
        for option, cost in zip(options, costs, strict=True)
    )
    option = options[chosen]
    return Choice(
        option,
        f"placement auto: {option.placement} ({option.store}), for {format_bytes(payload_bytes)} a round, "
        f"{workers} workers and a link of {format_bytes(link.bytes_per_second)}/s and {format_duration(link.latency)}: "
        f"expected {told}",
    )
