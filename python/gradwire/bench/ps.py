"""One round through parameter servers, by gradwire and by peers in the same run. `gradwire bench ps`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gradwire.bench import peer_mxnet
from gradwire.bench.hosts import Network
from gradwire.bench.launches import BenchFailed, Launch, record, records_of, take_turns
from gradwire.bench.plan import ServersPlan
from gradwire.bench.rounds import Task
from gradwire.bench.system import System, encoded_bytes, fixed_threshold
from gradwire.launch.child import Line
from gradwire.launch.supervisor import JobResult, run_job


def measure(plan: ServersPlan, say: Callable[[str], None]) -> tuple[list[dict[str, Any]], list[BenchFailed]]:
    """Runs everything plan asks for. Returns one record per system and codec, and what went wrong.

    Raises:
        ValueError: an unknown codec or reply.
        PeerUnavailable, NetLabUnavailable: says what and why.
    """
    ways = (None,) if plan.tensors == 1 else (True, False)
    rows = [_gradwire(plan, replicas, fused) for replicas in range(plan.replicas + 1) for fused in ways]
    if "mxnet" in plan.peers:
        rows += peer_mxnet.systems(plan, plan.servers, [plan.compression], say)
    with Network.open(plan.ranks, plan.servers, plan.bandwidth, plan.colocated) as network:
        turns = take_turns(plan, rows, network, say, partial(_check_link, plan))
    return records_of(turns, rows, partial(_record, plan)), turns.troubles


def _record(plan: ServersPlan, system: System, launches: Sequence[Launch]) -> dict[str, Any]:
    common = record(plan, system, launches)
    if plan.colocated:  # a worker's sockets are not all that its host sends
        common["bytes_sent_per_rank"] = common["link_bytes_sent_per_rank"]
    return common | {"colocated": plan.colocated, "replicas": system.replicas}


def _gradwire(plan: ServersPlan, replicas: int, fused: bool | None) -> System:
    wanted = plan.compression
    pushed, replied = encoded_bytes(wanted, plan.ranks, plan.elements // plan.tensors)

    def start(network: Network, task: Task, output: Callable[[Line], None], timeout: float) -> JobResult:
        return run_job(
            [sys.executable, "-m", "gradwire.bench.worker", task.text()],
            plan.ranks,
            0 if plan.transport == "inproc" else plan.servers,
            env={
                **plan.environment,
                "GRADWIRE_REPLICAS": str(replicas),
                **({"GRADWIRE_FUSION_BYTES": "0"} if fused is False else {}),
            },
            placement=network.place,
            output=output,
            timeout=timeout,
        )

    return System(
        name="gradwire",
        codec=plan.codec,
        spec=wanted.spec,
        reply=wanted.reply,
        pushed=pushed * plan.tensors,
        replied=replied * plan.tensors,
        start=start,
        threshold=fixed_threshold(wanted),
        store="local" if plan.transport == "inproc" else "dist_sync",
        transport=plan.transport,
        servers=plan.servers,
        replicas=replicas,
        fused=fused,
    )


def _check_link(plan: ServersPlan, system: System, launch: Launch) -> None:
    """Finds traffic that by-passed the shaped links: what a worker sent must have left its host."""
    if launch.link_bytes is None or launch.mean_sent_bytes is None:
        return
    share = (plan.ranks - 1) / plan.ranks if plan.colocated else 1.0
    expected = share * launch.mean_sent_bytes
    if launch.link_bytes < 0.98 * expected:
        given = f"{launch.link_bytes:.0f} bytes left a worker's host in a round"
        raise BenchFailed(f"bench ps: {system.label}: {given}, expected {expected:.0f} at least")
