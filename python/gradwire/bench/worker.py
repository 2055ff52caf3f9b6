"""gradwire's worker in `gradwire bench ps` and `allreduce`: python -m gradwire.bench.worker TASK."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gradwire import compress, kv
from gradwire.bench import rounds


class CodecSum:
    """What the codec alone makes of one tensor's gradients: for codecs whose rule rounds.py does not know."""

    def __init__(self, grads: list[Any], codec: str, reply: str) -> None:
        self._grads = grads
        self._codec = compress.make(codec)
        self._reply = reply
        self._residuals = [np.zeros_like(grad) if self._codec.lossy else None for grad in grads]
        self._reply_residual = np.zeros_like(grads[0]) if self._codec.lossy else None
        self._scales: Any = None

    def next_round(self) -> Any:
        payloads = [
            self._codec.encode(grad, residual=residual, scales=self._scales)
            for grad, residual in zip(self._grads, self._residuals, strict=True)
        ]
        size = self._grads[0].size
        kept = self._reply_residual if self._reply == self._codec.name else None
        reply = self._codec.encode_reply(payloads, size, reply=self._reply, residual=kept)
        total, self._scales = self._codec.decode_reply(reply, len(payloads), size, reply=self._reply)
        return total


class CodecSums:
    """The same of several tensors, one after the other: each has its own codec units."""

    def __init__(self, task: rounds.Task, rank: int) -> None:
        grads = task.share_of_grads(rank)
        length = grads[0].size if task.tensors == 1 else task.tensor_elements
        cuts = [slice(at, at + length) for at in range(0, grads[0].size, max(1, length))]
        self._empty = grads[0][:0]
        self._sums = [CodecSum([grad[cut] for grad in grads], task.codec, task.reply) for cut in cuts]

    def next_round(self) -> Any:
        return np.concatenate([self._empty, *(one.next_round() for one in self._sums)])


def small_tensors(store: kv.KVStore, tensors: list[Any]) -> Callable[[], None]:
    """Returns a step of many tensors: slots, ready one after the other from the last to the first, as backward()
    makes them, so that the store fuses what it may."""
    keys = store.engine.declare([(f"tensor.{i}", [t.size], "float32") for i, t in enumerate(tensors)])
    store.engine.bind_slots(keys, tensors)

    def step() -> None:
        for slot in reversed(range(len(tensors))):
            store.engine.mark_ready(slot)
        store.engine.drain()

    return step


def main(text: str) -> None:
    task = rounds.Task.parse(text)
    store = kv.create(task.store)
    separator = "," if ":" in task.codec else ":"
    store.set_gradient_compression(f"{task.codec}{separator}reply={task.reply}")
    source = rounds.gradient(store.rank, task.elements)
    grad = np.zeros_like(source)
    exchange: Callable[[], None]
    if task.tensors == 1:
        store.init(0, grad)
        exchange = partial(store.pushpull, 0, grad)
    else:
        exchange = small_tensors(store, task.cut(grad))
    expectation = task.known_expectation(store.rank) or CodecSums(task, store.rank)
    actions = rounds.Actions(
        barrier=store.barrier,
        prepare=partial(np.copyto, grad, source),
        exchange=exchange,
        result=lambda: grad,
        sent_bytes=lambda: int(store.engine.counters()["bytes_sent"]),
    )
    rounds.run(task, store.rank, actions, rounds.matches(expectation, task.share(store.rank)))
    store.close()


if __name__ == "__main__":
    main(sys.argv[1])
