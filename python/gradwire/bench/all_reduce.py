"""One all-reduce, by gradwire and by peers in the same run, on the same links. `gradwire bench allreduce`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gradwire.bench import peer_gloo, peer_mxnet, peer_openmpi, stores
from gradwire.bench.hosts import Network
from gradwire.bench.launches import BenchFailed, Launch, record, records_of, take_turns
from gradwire.bench.plan import AllReducePlan
from gradwire.bench.system import System

_UNIT_ELEMENTS = 65_536  # no frame holds less of a tensor than a codec unit, or all of it
_FRAME_BYTES = 160  # more than a frame's header (112) and ZeroMQ's own
_CONTROL_BYTES = 16_384  # barriers and heartbeats of a round
_ROUNDING = 0.001  # of the payload: encoded in partitions of another length, it ends in other bytes


def measure(
    plan: AllReducePlan, say: Callable[[str], None]
) -> tuple[list[dict[str, Any]], list[BenchFailed]]:
    """Runs everything plan asks for. Returns one record per system, and what went wrong.

    Raises:
        ValueError: an unknown store.
        PeerUnavailable, NetLabUnavailable: says what and why.
    """
    rows = [*stores.systems(plan), *(row for peer in plan.peers for row in _peer(plan, peer, say))]
    with Network.open(plan.ranks, plan.ranks, plan.bandwidth, colocated=True) as network:
        turns = take_turns(plan, rows, network, say, partial(check_bytes, plan))
    records = records_of(turns, rows, partial(_record, plan))
    measured = [row for row in records if row["failure"] is None]
    peers = {row["label"]: row["seconds_median"] for row in measured if row["system"] != "gradwire"}
    for row in measured:
        own = row["seconds_median"]
        ours = row["system"] == "gradwire"
        row["speed_over"] = {label: seconds / own for label, seconds in peers.items()} if ours else {}
    return records, turns.troubles


def _peer(plan: AllReducePlan, peer: str, say: Callable[[str], None]) -> list[System]:
    if peer == "mxnet":
        return peer_mxnet.systems(plan, plan.ranks, [wanted for _, wanted in plan.compressions], say)
    if peer == "openmpi":
        return peer_openmpi.systems(plan)
    return peer_gloo.systems(plan, peer)


def payload_bytes(plan: AllReducePlan, system: System) -> float:
    """Returns the encoded bytes that a rank sends in a round, mean over the ranks: every host owns a share, takes the
    others' part of it and answers each: (N-1)/N * (P + R). A ring of one gradient sends as much: P = R."""
    return (plan.ranks - 1) / plan.ranks * (system.pushed + system.replied)


def header_bytes(plan: AllReducePlan) -> float:
    """Returns the most that headers and the control plane add to a rank's round, mean over the ranks."""
    parts = plan.tensors * math.ceil(plan.elements / plan.tensors / _UNIT_ELEMENTS) + plan.ranks
    return 2 * (plan.ranks - 1) / plan.ranks * parts * _FRAME_BYTES + _CONTROL_BYTES


def check_bytes(plan: AllReducePlan, system: System, launch: Launch) -> None:
    """Holds what sockets and links counted against the documented cost.

    Raises: BenchFailed: a store of sharing workers sent less or more than its formula to within headers, or less
        left a host than the system must send, so that traffic by-passed the link.
    """
    payload = payload_bytes(plan, system)
    low, high = (1 - _ROUNDING) * payload, (1 + _ROUNDING) * payload + header_bytes(plan)
    sent, link = launch.mean_sent_bytes, launch.link_bytes
    counts = system.store and stores.find(system.store).placement == "peers"
    if counts and sent is not None and not low <= sent <= high:
        given = f"a rank sent {sent:.0f} bytes in a round"
        raise BenchFailed(f"{plan.command}: {system.label}: {given}, expected {low:.0f} to {high:.0f}")
    if link is not None and link < 0.98 * payload:
        given = f"{link:.0f} bytes left a host in a round"
        raise BenchFailed(f"{plan.command}: {system.label}: {given}, expected {payload:.0f} at least")


def _record(plan: AllReducePlan, system: System, launches: Sequence[Launch]) -> dict[str, Any]:
    common = record(plan, system, launches)
    if system.servers:  # a worker's sockets are not all that its host sends
        common["bytes_sent_per_rank"] = common["link_bytes_sent_per_rank"]
    return common | {
        "store": system.store or None,
        "payload_checksum": system.payload_checksum,
        "payload_bytes_per_rank": round(payload_bytes(plan, system)),
    }
