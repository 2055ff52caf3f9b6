"""gradwire's worker in a replay: python gradwire_worker.py FOLDER, started by run.py.

A piece of a layer is a key of its own: the engine cuts no tensor finer than a codec unit of 65 536 elements, which here
would stand for a hundred times as many. Everything else is the engine's own: priority, credit, codec, residual, server.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gradwire import kv

from replay.lanes import Job, Sender
from replay.steps import Replay, Task

# Of every gradient's elements, with either sign: the threshold of 2bit, so that no sum is rounded.
_LEVEL = 0.5


def gradient(elements: int) -> Any:
    """Returns the same gradient on all ranks, so that every element's sum is known, and codes are exact."""
    signs = np.random.default_rng(0).integers(0, 2, elements, dtype=np.int8)
    return np.where(signs == 0, np.float32(-_LEVEL), np.float32(_LEVEL))


class Tensor:
    """One run of memory whose pieces are keys of the store, and the pieces' rounds in flight."""

    def __init__(self, store: kv.KVStore, name: str, pieces: Sequence[int]) -> None:
        self._engine = store.engine
        self._grad = gradient(sum(pieces))
        self._sum = np.zeros_like(self._grad)
        self._expected = self._grad * np.float32(store.num_workers)
        ends = np.cumsum(pieces)
        self._cuts = [slice(end - size, end) for end, size in zip(ends, pieces, strict=True)]
        # Keys are numbered in the order of their names.
        keys = [(f"{name}.{index:06d}", [size], "float32") for index, size in enumerate(pieces)]
        self._keys = self._engine.declare(keys)
        self._tickets: list[Any] = []
        self._pushed = threading.Condition()

    def push(self, piece: int, priority: int) -> None:
        cut = self._cuts[piece]
        ticket = self._engine.push_pull(self._keys[piece], self._grad[cut], self._sum[cut], priority)
        with self._pushed:
            self._tickets.append(ticket)
            if len(self._tickets) == len(self._keys):
                self._pushed.notify()

    def wait(self, patience: float, sender: Sender) -> None:
        """Waits for all pieces' sums. Raises: TimeoutError: they have not come within patience seconds."""
        deadline = time.monotonic() + patience
        with self._pushed:
            while len(self._tickets) < len(self._keys):
                if sender.failure is not None:
                    raise sender.failure
                self._pushed.wait(1.0)
                self._expect_before(deadline, patience)
        for ticket in self._tickets:
            while not ticket.wait(1.0):
                self._expect_before(deadline, patience)
        self._tickets.clear()

    def _expect_before(self, deadline: float, patience: float) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"replay: a layer's sum did not come within {patience:.0f} s")

    def check(self) -> None:
        if not np.array_equal(self._sum, self._expected):
            wrong = int(np.count_nonzero(self._sum != self._expected))
            raise RuntimeError(f"replay: {wrong} of {self._sum.size} sums are not what was pushed")


class GradwireExchange:
    """steps.Exchange over a store."""

    def __init__(self, store: kv.KVStore, task: Task) -> None:
        self._store = store
        self._task = task
        self._tensors = [
            Tensor(store, f"tensor.{index:06d}", sizes) for index, sizes in enumerate(task.pieces)
        ]
        self._sender = Sender(max(1, task.servers), self._push)

    def begin(self, tensor: int) -> None:
        urgency = 0 if self._task.in_order else tensor
        now, worker_seconds = time.perf_counter(), self._task.encode + self._task.decode
        stages = zip(self._task.full_elements[tensor], self._task.owners[tensor], strict=True)
        self._sender.add(
            Job(tensor, urgency, piece, owner, now, size * worker_seconds, size * self._task.serve)
            for piece, (size, owner) in enumerate(stages)
        )

    def _push(self, job: Job) -> None:
        self._tensors[job.layer].push(job.piece, -job.urgency)

    def wait(self, tensor: int) -> None:
        self._tensors[tensor].wait(self._task.patience, self._sender)

    def check(self) -> None:
        for tensor in self._tensors[: len(self._task.forward)]:
            tensor.check()

    def barrier(self) -> None:
        self._store.barrier()

    def sent_bytes(self) -> int:
        return int(self._store.engine.counters()["bytes_sent"])

    def close(self) -> None:
        self._sender.close()
        self._store.close()


def main(folder: str) -> None:
    task = Task.read(folder)
    store = kv.create(task.store)
    separator = "," if ":" in task.codec else ":"
    store.set_gradient_compression(f"{task.codec}{separator}reply={task.reply}")
    exchange = GradwireExchange(store, task)
    Replay(task, store.rank, exchange).run()
    exchange.close()


if __name__ == "__main__":
    main(sys.argv[1])
