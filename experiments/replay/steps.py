"""What a worker does in a replay, whatever the system: it sleeps for layers, hands over gradients and awaits sums.

Only the standard library: a peer's worker runs this in the peer's own environment.

Threading: one thread. Rank 0 says where it is in lines that begin with MARKER; each rank leaves its record in the
task's folder.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

MARKER = "@replay "
TASK_FILE = "task.json"
_AT_ONCE = 2e-4  # seconds: a wait that took less was none, but the cost of asking


@dataclass(frozen=True)
class Task:
    """What run.py asks of every worker.

    forward and backward: seconds, by layer. sizes: elements of each tensor, one for each layer and, where there are
    rounds, one more behind them. bucket_elements: of gloo's buckets, the first and the others. patience: seconds after
    which a wait has failed.

    Of gradwire alone: codec, reply and store are its words; in_order: all layers have the same priority. keys: the
    tensors that travel together; pieces: elements of what each key is cut into, full_elements: what they stand for,
    owners: which server has each; turns: by rank and key, the order in which they are encoded. encode, decode and
    serve: seconds per full-size element.
    """

    workers: int
    servers: int
    codec: str
    reply: str
    store: str
    in_order: bool
    forward: list[float]
    backward: list[float]
    sizes: list[int]
    keys: list[list[int]]
    pieces: list[list[int]]
    full_elements: list[list[int]]
    owners: list[list[int]]
    turns: list[list[list[int]]]
    encode: float
    decode: float
    serve: float
    modes: list[str]
    warm_up: int
    steps: int
    rounds: int
    bucket_elements: list[int]
    patience: float
    folder: str

    @classmethod
    def read(cls, folder: str) -> Task:
        return cls(**json.loads(Path(folder, TASK_FILE).read_text()))

    def write(self) -> None:
        Path(self.folder, TASK_FILE).write_text(json.dumps(asdict(self)))


class Exchange(Protocol):
    """How a system sums. Tensors are those of the layers, numbered from the front.

    begin: the tensor's gradient is complete. wait: returns once its sum is here. check: raises RuntimeError where a sum
    is not what it must be. sent_bytes: through this worker's sockets so far; None: the system does not tell.
    """

    def begin(self, tensor: int) -> None: ...
    def wait(self, tensor: int) -> None: ...
    def check(self) -> None: ...
    def barrier(self) -> None: ...
    def sent_bytes(self) -> int | None: ...


class Device:
    """Something that computes one layer behind the other, each once its input is there; here it sleeps.

    It keeps the time at which the device would be done, so that a sleep that lasts too long shortens the next.
    """

    def __init__(self) -> None:
        self._done_at = time.perf_counter()

    def compute(self, seconds: float) -> None:
        self._done_at += seconds
        pause = self._done_at - time.perf_counter()
        if pause > 0:
            time.sleep(pause)

    def wait(self, block: Callable[[], None]) -> float:
        """Lets the device stand still for as long as block() does; returns for how many seconds it did."""
        began = time.perf_counter()
        block()
        ended = time.perf_counter()
        if ended - began > _AT_ONCE:
            stood = max(0.0, ended - self._done_at)
            self._done_at += stood
            return stood
        return 0.0


class Replay:
    """One worker's part: blocks of steps, one for each mode, then rounds of one tensor."""

    def __init__(self, task: Task, rank: int, exchange: Exchange) -> None:
        self._task = task
        self._rank = rank
        self._exchange = exchange
        self._layers = range(len(task.forward))

    def run(self) -> None:
        """Does all of it and leaves the record. Raises: RuntimeError: a sum is wrong, or did not come in time."""
        blocks = [self._block(mode) for mode in self._task.modes]
        record = {"blocks": blocks, "rounds": self._rounds()}
        file = record_file(self._task.folder, self._rank)
        draft = file.with_suffix(".draft")
        draft.write_text(json.dumps(record))
        draft.rename(file)
        self._exchange.barrier()  # nobody leaves while others still sum

    def _block(self, mode: str) -> dict[str, object]:
        """Takes steps of one mode: drain waits for all sums before the next forward(), overlap for each layer's before
        that layer; alone sends nothing."""
        self._exchange.barrier()
        self._mark(mode, "open")
        sent = self._exchange.sent_bytes()
        self._exchange.barrier()  # all ranks have read their counters
        device = Device()
        warm_up = self._task.warm_up + (mode == "overlap")  # whose first step has nothing to wait for
        ends = [time.perf_counter()]
        waited = [0.0] * len(self._layers)
        for step in range(warm_up + self._task.steps):
            if step == warm_up:
                self._mark(mode, "timed")
                waited = [0.0] * len(self._layers)
            self._step(device, mode, step == 0, waited)
            ends.append(time.perf_counter())
        self._mark(mode, "done")
        if mode == "overlap":
            self._wait_for_all()
        self._exchange.barrier()
        sent_after = self._exchange.sent_bytes()
        self._mark(mode, "close")
        if mode != "alone":
            self._exchange.check()
        return {
            "mode": mode,
            "steps": [after - before for before, after in itertools.pairwise(ends)],
            "warm_up": warm_up,
            "waited": waited,
            "sent_bytes": None if sent is None or sent_after is None else sent_after - sent,
        }

    def _step(self, device: Device, mode: str, first: bool, waited: list[float]) -> None:
        """waited: seconds that the device has stood still for each layer's sum, to which this step's are added."""
        for layer in self._layers:
            if mode == "overlap" and not first:
                waited[layer] += device.wait(partial(self._exchange.wait, layer))
            device.compute(self._task.forward[layer])
        for layer in reversed(self._layers):
            device.compute(self._task.backward[layer])
            if mode != "alone":
                self._exchange.begin(layer)
        if mode == "drain":
            for layer in self._layers:
                waited[layer] += device.wait(partial(self._exchange.wait, layer))

    def _wait_for_all(self) -> None:
        for layer in self._layers:
            self._exchange.wait(layer)

    def _rounds(self) -> list[float]:
        """Seconds of each round of the one tensor, the first of which is not kept."""
        if not self._task.rounds:
            return []
        taken = []
        for number in range(1 + self._task.rounds):
            self._exchange.barrier()
            if number == 1:
                self._mark("rounds", "timed")
            began = time.perf_counter()
            self._exchange.begin(len(self._layers))
            self._exchange.wait(len(self._layers))
            taken.append(time.perf_counter() - began)
        self._exchange.barrier()
        self._mark("rounds", "done")
        return taken[1:]

    def _mark(self, what: str, when: str) -> None:
        if self._rank == 0:
            sys.stdout.write(f"{MARKER}{json.dumps([what, when])}\n")
            sys.stdout.flush()


def record_file(folder: str | Path, rank: int) -> Path:
    """Where rank leaves its record."""
    return Path(folder, f"rank-{rank}.json")
