"""Runs one row: a job of processes on hosts of their own.

Threading: one thread, the caller's.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from gradwire.bench.hosts import Network
from gradwire.launch.child import Line

from replay import costs, records, systems
from replay.buckets import DDP_BYTES
from replay.cpu import Load, Watch
from replay.plan import Plan, ReplayFailed
from replay.rows import LOOPBACK
from replay.steps import MARKER, Task, record_file

_START_SECONDS = 120.0
_LAST_LINES = 20


@dataclass(frozen=True)
class Reading:
    """When a mark came, by time.monotonic(), and the bytes that had left workers' hosts by then."""

    at: float
    sent_bytes: float | None


class Marks:
    """Takes the lines of a job: its marks, and its last words."""

    def __init__(self, network: Network, watch: Watch, say: Callable[[str], None]) -> None:
        self._network = network
        self._watch = watch
        self._say = say
        self._last: list[str] = []
        self.readings: dict[tuple[str, str], Reading] = {}

    def __call__(self, line: Line) -> None:
        if not line.text.startswith(MARKER):
            self._last = [*self._last, f"{line.role} {line.rank}: {line.text}"][-_LAST_LINES:]
            return
        what, when = json.loads(line.text.removeprefix(MARKER))
        self.readings[what, when] = Reading(time.monotonic(), self._network.sent_bytes())
        if when in ("open", "timed"):
            self._say(f"{what}: {'begins' if when == 'open' else 'warm, timing'}")

    def last_words(self) -> str:
        return "".join(f"\n  | {text}" for text in self._last)

    def cpu(self, what: str) -> Load:
        """Returns what was busy while steps or rounds were timed, whoever it was."""
        return self._watch.load(self.readings[what, "timed"].at, self.readings[what, "done"].at)

    def link_bytes(self, what: str) -> float | None:
        """Returns the bytes that left all workers' hosts in a whole block; None where they have no links."""
        begin, end = self.readings[what, "open"].sent_bytes, self.readings[what, "close"].sent_bytes
        return None if begin is None or end is None else end - begin


def run(plan: Plan, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Runs the row and returns one record for each mode.

    Raises:
        ReplayFailed: a worker failed, was too late or got a wrong sum, or bytes were not what they had to be.
        KeyboardInterrupt: the job was stopped by a signal.
        NetLabUnavailable: hosts cannot be made here.
    """
    row = plan.row
    measured = costs.measure(plan.compression, row.workers, plan.scale.partition_bytes // 4)
    bandwidth = None if row.bandwidth == LOOPBACK else plan.scale.bandwidth(row.bandwidth)
    shared = row.placement != "servers"
    with (
        tempfile.TemporaryDirectory(prefix="gradwire-replay-") as folder,
        Network.open(
            row.workers, row.servers, bandwidth, colocated=shared, queue_seconds=plan.queue_seconds
        ) as network,
        closing(Watch()) as watch,
    ):
        if network.lab is not None:
            _shrink_socket_buffers(plan, network)
        marks = Marks(network, watch, lambda text: say(f"{row.name}: {text}"))
        task = make_task(plan, measured, folder)
        task.write()
        job = systems.start(
            systems.Launch(row, plan.scale, folder, network, marks, _timeout(plan, task), plan.mxnet_python)
        )
        if job.interrupted is not None:
            raise KeyboardInterrupt
        if job.exit_code != 0:
            raise ReplayFailed(f"replay: {row.name}: {job.cause}{marks.last_words()}")
        files = [record_file(folder, rank) for rank in range(row.workers)]
        if missing := [str(rank) for rank, file in enumerate(files) if not file.exists()]:
            raise ReplayFailed(
                f"replay: {row.name}: no record of worker {', '.join(missing)}{marks.last_words()}"
            )
        ranks = [json.loads(file.read_text()) for file in files]
    return records.of_row(plan, measured, marks, ranks)


def make_task(plan: Plan, measured: costs.Costs, folder: str) -> Task:
    """Returns what workers are told."""
    is_ours = plan.row.system == "gradwire"
    keys = plan.cut.all_keys() if is_ours else []
    stores = {"peers": "allreduce", "servers": "dist_sync", "shared": "dist_sync"}
    return Task(
        workers=plan.row.workers,
        servers=plan.row.owners,
        codec=plan.compression.spec,
        reply=plan.compression.reply,
        store=stores[plan.row.placement],
        in_order=plan.in_order,
        forward=[layer.forward_seconds for layer in plan.profile.layers],
        backward=[layer.backward_seconds for layer in plan.profile.layers],
        sizes=[plan.scale.elements(size) for size in plan.tensors],
        keys=[list(key.tensors) for key in keys],
        pieces=[[piece.elements for piece in key.pieces] for key in keys],
        full_elements=[[piece.full_elements for piece in key.pieces] for key in keys],
        owners=[[piece.owner for piece in key.pieces] for key in keys],
        turns=[plan.cut.turns(rank) for rank in range(plan.row.workers)] if is_ours else [],
        encode=measured.encode,
        decode=measured.decode,
        serve=measured.serve,
        modes=list(plan.modes),
        warm_up=plan.warm_up,
        steps=plan.steps,
        rounds=plan.rounds,
        bucket_elements=[max(1, round(size / 4 / plan.scale.factor)) for size in DDP_BYTES],
        patience=60 + 10 * plan.slowest_step,
        folder=folder,
    )


def _timeout(plan: Plan, task: Task) -> float:
    steps = len(task.modes) * (plan.warm_up + plan.steps) + 1 + plan.rounds
    return _START_SECONDS + 4 * steps * plan.slowest_step


def _shrink_socket_buffers(plan: Plan, network: Network) -> None:
    """Divides the limits of every host's socket buffers.

    Raises: ReplayFailed: a host refuses.
    """
    words = [
        f"echo '{value}' > /proc/sys/net/ipv4/{name}" for name, value in plan.scale.socket_buffers().items()
    ]
    places = [("worker", rank) for rank in range(plan.row.workers)]
    places += [("server", rank) for rank in range(plan.row.servers)]
    for role, rank in places:
        process = network.place(role, rank).popen(["sh", "-ec", "; ".join(words)])
        if process.wait(timeout=10) != 0:
            raise ReplayFailed(f"replay: {role} {rank}'s host does not let its socket buffers be set")
    network.forget_processes()
