"""gradwire's own stores in `gradwire bench allreduce`: one table, one row each."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gradwire.bench import peer_openmpi
from gradwire.bench.hosts import Network
from gradwire.bench.plan import AllReducePlan
from gradwire.bench.rounds import Task
from gradwire.bench.system import PeerUnavailable, System, encoded_bytes, fixed_threshold
from gradwire.compress import Compression
from gradwire.launch.child import Line
from gradwire.launch.supervisor import JobResult, run_job
from gradwire.stores import nccl


@dataclass(frozen=True)
class Store:
    """A store as the bench starts it.

    Attributes:
        name: what kv.create takes.
        transport: what carries its bytes, as records name it.
        placement: who hosts Server: "peers", every worker that of its shard; "servers", processes of their own, here
            one on the host of every worker; "native", nobody.
        launcher: what starts its workers.
    """

    name: str
    transport: str
    placement: Literal["peers", "servers", "native"]
    launcher: Literal["run", "mpirun"]


STORES = (
    Store("allreduce", "zmq", "peers", "run"),
    Store("dist_sync", "zmq", "servers", "run"),
    Store("dist_sync_mpi", "mpi", "peers", "mpirun"),
    Store("allreduce_mpi", "mpi", "native", "mpirun"),
    Store("nccl", "nccl", "native", "run"),
)


def find(name: str) -> Store:
    """Raises: ValueError: there is none; names those there are."""
    for store in STORES:
        if store.name == name:
            return store
    known = ", ".join(store.name for store in STORES)
    raise ValueError(f"bench allreduce: --store {name} is not valid: expected one of {known}")


def of_transport(transport: str) -> Store:
    """Returns the store that is measured where none is named.

    Raises: ValueError: none has this transport; names those there are.
    """
    for store in STORES:
        if store.transport == transport:
            return store
    known = ", ".join(dict.fromkeys(store.transport for store in STORES))
    raise ValueError(f"bench allreduce: --transport {transport} is not valid: expected one of {known}")


def chosen(names: tuple[str, ...], transport: str | None) -> tuple[str, ...]:
    """Returns the stores to measure.

    Args:
        names: given by --store. Empty: the store of the transport.
        transport: given by --transport. None: any that the stores have; zmq where none is named.

    Raises: ValueError: an unknown name, or a store that another transport carries.
    """
    default = of_transport(transport or "zmq")
    for store in map(find, names):
        if transport not in (None, store.transport):
            raise ValueError(
                f"bench allreduce: --transport {transport} with --store {store.name} is not valid: expected "
                f"{store.transport}, which carries that store, or no --transport"
            )
    return names or (default.name,)


def systems(plan: AllReducePlan) -> list[System]:
    """Lists every store with every compression and checksum setting; small tensors fused, and not.

    Raises:
        ValueError: an unknown store, or one that cannot be encrypted as was asked.
        PeerUnavailable: nccl, which cannot be used here; says why.
    """
    if "nccl" in plan.stores and (reason := nccl.why_not()) is not None:
        raise PeerUnavailable(f"bench allreduce: --store nccl: {reason}; leave it out")
    if plan.encrypt and (plain := [name for name in plan.stores if find(name).transport != "zmq"]):
        raise ValueError(
            f"bench allreduce: --encrypt with --store {plain[0]} is not valid: its library does not encrypt; expected "
            "stores over zmq"
        )
    fused = (None,) if plan.tensors == 1 else (True, False)
    rows = itertools.product(map(find, plan.stores), plan.compressions, plan.checksums, fused)
    return [_system(plan, store, *wanted, checksum, fused) for store, wanted, checksum, fused in rows]


def _system(
    plan: AllReducePlan,
    store: Store,
    codec: str,
    compression: Compression,
    checksum: str,
    fused: bool | None,
) -> System:
    environment = {**plan.environment, "GRADWIRE_CHECKSUM": checksum}
    if fused is False:
        environment["GRADWIRE_FUSION_BYTES"] = "0"

    servers = plan.ranks if store.placement == "servers" else 0

    def start(network: Network, task: Task, output: Callable[[Line], None], timeout: float) -> JobResult:
        command = [sys.executable, "-m", "gradwire.bench.worker", task.text()]
        if store.launcher == "mpirun":
            return peer_openmpi.run(command, plan.ranks, network, environment, output, timeout)
        return run_job(
            command,
            plan.ranks,
            servers,
            env=environment,
            placement=network.place,
            output=output,
            timeout=timeout,
        )

    pushed, replied = encoded_bytes(compression, plan.ranks, plan.elements // plan.tensors)
    return System(
        name="gradwire",
        codec=codec,
        spec=compression.spec,
        reply=compression.reply,
        pushed=pushed * plan.tensors,
        replied=replied * plan.tensors,
        start=start,
        threshold=fixed_threshold(compression),
        store=store.name,
        transport=store.transport,
        servers=servers,
        fused=fused,
        payload_checksum=checksum,
    )
