"""The systems that `gradwire bench ps` compares: how each starts a job, and what each puts on the wire."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gradwire import settings
from gradwire.bench import peer_mxnet
from gradwire.bench.hosts import Network, Watched
from gradwire.bench.plan import Plan
from gradwire.bench.rounds import Task, gradient
from gradwire.child import Line
from gradwire.compress import Compression, make
from gradwire.launch import JobResult, run_job

WARM_UP = 2
Start = Callable[[Network, Task, Callable[[Line], None], float], JobResult]


@dataclass(frozen=True)
class System:
    """One row of the bench.

    Attributes:
        spec: the codec as the workers are told; codec: as the record names it.
        threshold: of MXNet's 2-bit rule, where that is the codec.
        pushed, replied: encoded bytes of one worker's gradient, and of the reply to it.
        start: runs a job to its end: network, task, where lines go, timeout.
    """

    name: str
    codec: str
    spec: str
    reply: str
    threshold: float | None
    pushed: int
    replied: int
    start: Start

    def task(self, plan: Plan, rounds: int, folder: str) -> Task:
        return Task(
            elements=plan.elements,
            ranks=plan.ranks,
            warm_up=WARM_UP,
            rounds=rounds,
            codec=self.spec,
            threshold=self.threshold,
            reply=self.reply,
            transport=plan.transport,
            folder=folder,
        )


def systems(plan: Plan, say: Callable[[str], None]) -> list[System]:
    """Lists gradwire and the peers; a peer with a codec of its own comes with it and without.

    Raises: ValueError: an unknown codec or reply. PeerUnavailable: a peer cannot be run here.
    """
    rows = [_gradwire(plan)]
    if "mxnet" in plan.peers:
        python = peer_mxnet.find_python(plan.mxnet_python, say)
        rows.append(_mxnet(plan, python, None))
        if plan.compression.spec.startswith("2bit"):
            rows.append(_mxnet(plan, python, fixed_threshold(plan.compression) or 0.5))
    return rows


def fixed_threshold(compression: Compression) -> float | None:
    """The threshold of a 2bit codec with MXNet's rule; None for other codecs and for threshold=auto."""
    name, _, rest = compression.spec.partition(":")
    words = dict(word.split("=") for word in rest.split(",") if word)
    return float(words["threshold"]) if name == "2bit" and words["threshold"] != "auto" else None


def encoded_bytes(compression: Compression, ranks: int, elements: int) -> tuple[int, int]:
    """Returns the bytes of one worker's payloads and of the replies to them, in a round that is not the first.

    Measured by encoding: a whole partition counts as often as there are whole ones, and the rest once.
    """
    partition = settings.Settings().partition_bytes // 4
    whole, rest = divmod(elements, partition)
    parts = [(whole, partition)] * (whole > 0) + [(1, rest)] * (rest > 0)
    sizes = [(count, *_sizes(compression, ranks, length)) for count, length in parts]
    return sum(count * pushed for count, pushed, _ in sizes), sum(count * reply for count, _, reply in sizes)


def _sizes(compression: Compression, ranks: int, elements: int) -> tuple[int, int]:
    codec, reply = make(compression.spec), compression.reply
    grad = gradient(0, elements)
    payload = codec.encode(grad)
    answer = codec.encode_reply([payload] * ranks, elements, reply=reply)
    if codec.agrees_scales:
        scales = codec.decode_reply(answer, ranks, elements, reply=reply)[1]
        payload = codec.encode(grad, scales=scales)
        answer = codec.encode_reply([payload] * ranks, elements, reply=reply)
    return payload.size, answer.size


def _gradwire(plan: Plan) -> System:
    wanted = plan.compression
    pushed, replied = encoded_bytes(wanted, plan.ranks, plan.elements)

    def start(network: Network, task: Task, output: Callable[[Line], None], timeout: float) -> JobResult:
        return run_job(
            [sys.executable, "-m", "gradwire.bench.worker", task.text()],
            plan.ranks,
            0 if plan.transport == "inproc" else plan.servers,
            env={
                "GRADWIRE_COMPRESSION": ""
            },  # the plan's codec counts, not one that the user's shell has set
            placement=network.place,
            output=output,
            timeout=timeout,
        )

    threshold = fixed_threshold(wanted)
    return System("gradwire", plan.codec, wanted.spec, wanted.reply, threshold, pushed, replied, start)


def _mxnet(plan: Plan, python: Path, threshold: float | None) -> System:
    def start(network: Network, task: Task, output: Callable[[Line], None], timeout: float) -> JobResult:
        root_address = network.place("scheduler", 0).address
        root = root_address, peer_mxnet.free_port(root_address)

        def host(process: int) -> Watched:
            return network.place(*peer_mxnet.role_of(process, plan.servers))

        def env(process: int) -> Mapping[str, str]:
            here = host(process)
            interface = network.interface(here)
            return peer_mxnet.environment(process, plan.ranks, plan.servers, root, here.address, interface)

        return run_job(  # to the launcher, MXNet's scheduler and servers are workers as well
            peer_mxnet.command(python, task.text()),
            1 + plan.servers + plan.ranks,
            0,
            worker_env=env,
            placement=lambda role, process: host(process),
            output=output,
            timeout=timeout,
        )

    codec, reply = ("none", "none") if threshold is None else ("2bit", "fp32")
    pushed = plan.gradient_bytes if threshold is None else 4 * math.ceil(plan.elements / 16)
    return System("mxnet", codec, codec, reply, threshold, pushed, plan.gradient_bytes, start)
