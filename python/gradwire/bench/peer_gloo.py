"""Gloo as a peer, through torch.distributed: plain, with fp16 on the wire, and with PyTorch's own PowerSGD."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable

from gradwire.bench import power_sgd
from gradwire.bench.hosts import Network
from gradwire.bench.plan import AllReducePlan
from gradwire.bench.rounds import Task
from gradwire.bench.system import PeerUnavailable, System
from gradwire.launch.child import Line
from gradwire.launch.supervisor import JobResult, run_job

CODECS = {"gloo": "none", "gloo-fp16": "fp16", "gloo-powersgd": "powersgd"}


def systems(plan: AllReducePlan, peer: str) -> list[System]:
    """Lists the one system that peer is.

    Raises: PeerUnavailable: there is no PyTorch with Gloo here.
    """
    _require_torch(peer)
    codec = CODECS[peer]
    encoded = {
        "none": plan.gradient_bytes,
        "fp16": plan.gradient_bytes // 2,
        "powersgd": power_sgd.encoded_bytes(plan.elements),
    }[codec]

    def start(network: Network, task: Task, output: Callable[[Line], None], timeout: float) -> JobResult:
        meeting = network.meeting(plan.ranks)

        def environment(rank: int) -> dict[str, str]:
            interface = network.interface(network.place("worker", rank))
            return meeting(rank) | {"GLOO_SOCKET_IFNAME": interface, "TORCH_CPP_LOG_LEVEL": "ERROR"}

        return run_job(
            [sys.executable, "-m", "gradwire.bench.gloo_worker", task.text()],
            plan.ranks,
            0,
            worker_env=environment,
            placement=network.place,
            output=output,
            timeout=timeout,
        )

    return [
        System(
            name=peer,
            codec=codec,
            spec=codec,
            reply=codec,
            pushed=encoded,
            replied=encoded,
            start=start,
            transport="tcp",
            fused=True if plan.tensors > 1 else None,
        )
    ]


def _require_torch(peer: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise PeerUnavailable(f"{peer}: no PyTorch in {sys.prefix}: install torch, or leave the peer out")
