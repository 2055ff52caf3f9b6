"""gradwire's worker in a replay: python gradwire_worker.py FOLDER, started by run.py.

What is planned at full size is cut.py's business: a piece of it is a key of the store here. Everything else is the
engine's own: priority, credit, codec, residual, server.
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

from replay.cut import declaration
from replay.lanes import Job, Sender
from replay.steps import Replay, Task

# Of every gradient's elements, with either sign: the threshold of 2bit, so that no sum is rounded.
_LEVEL = 0.5


def gradient(elements: int) -> Any:
    """Returns the same gradient on all ranks, so that every element's sum is known, and codes are exact."""
    signs = np.random.default_rng(0).integers(0, 2, elements, dtype=np.int8)
    return np.where(signs == 0, np.float32(-_LEVEL), np.float32(_LEVEL))


class PlannedKey:
    """Tensors that travel under one name at full size: one run of memory whose pieces are keys of the store here, and
    the pieces' rounds in flight.

    pieces: elements of each, store_keys: what the store calls them.
    """

    def __init__(
        self, store: kv.KVStore, tensors: Sequence[int], pieces: Sequence[int], store_keys: Sequence[int]
    ) -> None:
        self.tensors = tensors
        self._engine = store.engine
        self._store_keys = store_keys
        self._grad = gradient(sum(pieces))
        self._sum = np.zeros_like(self._grad)
        self._expected = self._grad * np.float32(store.num_workers)
        ends = np.cumsum(pieces)
        self._cuts = [slice(end - size, end) for end, size in zip(ends, pieces, strict=True)]
        self._tensors_left = len(tensors)  # without a gradient in this step
        self._is_awaited = False
        self._tickets: list[Any] = []
        self._pushed = threading.Condition()

    def begin(self) -> bool:
        """Takes one more tensor's gradient; returns whether it was the last one missing."""
        self._tensors_left -= 1
        if self._tensors_left:
            return False
        self._tensors_left = len(self.tensors)
        self._is_awaited = True
        return True

    def push(self, piece: int, priority: int) -> None:
        cut = self._cuts[piece]
        ticket = self._engine.push_pull(self._store_keys[piece], self._grad[cut], self._sum[cut], priority)
        with self._pushed:
            self._tickets.append(ticket)
            if len(self._tickets) == len(self._cuts):
                self._pushed.notify()

    def wait(self, patience: float, sender: Sender) -> None:
        """Waits for all pieces' sums, for the first of the tensors that asks for them.

        Raises: TimeoutError: they have not come within patience seconds.
        """
        if not self._is_awaited:
            return
        deadline = time.monotonic() + patience
        with self._pushed:
            while len(self._tickets) < len(self._cuts):
                if sender.failure is not None:
                    raise sender.failure
                self._pushed.wait(1.0)
                self._expect_before(deadline, patience)
        for ticket in self._tickets:
            while not ticket.wait(1.0):
                self._expect_before(deadline, patience)
        self._tickets.clear()
        self._is_awaited = False

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
        store_keys = iter(declare(store, task))
        self._keys = [
            PlannedKey(store, tensors, pieces, [next(store_keys) for _ in pieces])
            for tensors, pieces in zip(task.keys, task.pieces, strict=True)
        ]
        self._key_of = {tensor: key for key, tensors in enumerate(task.keys) for tensor in tensors}
        self._turns = task.turns[store.rank]
        self._sender = Sender(max(1, task.servers), self._push)

    def begin(self, tensor: int) -> None:
        key = self._key_of[tensor]
        if not self._keys[key].begin():
            return
        task = self._task
        urgency = 0 if task.in_order else min(task.keys[key])
        now, worker_seconds = time.perf_counter(), task.encode + task.decode
        sizes, owners = task.full_elements[key], task.owners[key]
        self._sender.add(
            Job(
                *(key, urgency, piece, owners[piece], now),
                codec_seconds=sizes[piece] * worker_seconds,
                server_seconds=sizes[piece] * task.serve,
            )
            for piece in self._turns[key]
        )

    def _push(self, job: Job) -> None:
        self._keys[job.key].push(job.piece, -job.urgency)

    def wait(self, tensor: int) -> None:
        self._keys[self._key_of[tensor]].wait(self._task.patience, self._sender)

    def check(self) -> None:
        for key in self._keys:
            if key.tensors[0] < len(self._task.forward):
                key.check()

    def barrier(self) -> None:
        self._store.barrier()

    def sent_bytes(self) -> int:
        return int(self._store.engine.counters()["bytes_sent"])

    def close(self) -> None:
        self._sender.close()
        self._store.close()


def declare(store: kv.KVStore, task: Task) -> list[int]:
    """Tells the store of all pieces, so that each gets its owner; returns its keys, by piece."""
    elements = [size for pieces in task.pieces for size in pieces]
    owners = [owner for of_key in task.owners for owner in of_key]
    declared = declaration(elements, owners, task.servers)
    # Keys are numbered, and placed, in the order of their names.
    names = [(f"{number:08d}", [one.elements], "float32") for number, one in enumerate(declared)]
    found = zip(declared, store.engine.declare(names), strict=True)
    key_of = {one.piece: key for one, key in found if one.piece is not None}
    return [key_of[piece] for piece in range(len(elements))]


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
