"""gradwire's worker in `gradwire bench ps`: python -m gradwire.bench.worker TASK."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gradwire import compress, kv
from gradwire.bench import rounds


class CodecSum:
    """What the codec alone makes of the gradients: for codecs whose rule rounds.py does not know."""

    def __init__(self, grads: list[Any], codec: str, reply: str) -> None:
        self._grads = grads
        self._codec = compress.make(codec)
        self._reply = reply
        self._residuals = [np.zeros_like(grad) if self._codec.lossy else None for grad in grads]
        self._reply_residual = np.zeros_like(grads[0]) if self._codec.lossy else None
        self._scales: Any = None

    def next_round(self) -> Any:
        if self._grads[0].size == 0:
            return self._grads[0]
        payloads = [
            self._codec.encode(grad, residual=residual, scales=self._scales)
            for grad, residual in zip(self._grads, self._residuals, strict=True)
        ]
        size = self._grads[0].size
        kept = self._reply_residual if self._reply == self._codec.name else None
        reply = self._codec.encode_reply(payloads, size, reply=self._reply, residual=kept)
        total, self._scales = self._codec.decode_reply(reply, len(payloads), size, reply=self._reply)
        return total


def main(text: str) -> None:
    task = rounds.Task.parse(text)
    store = kv.create("local" if task.transport == "inproc" else "dist_sync")
    separator = "," if ":" in task.codec else ":"
    store.set_gradient_compression(f"{task.codec}{separator}reply={task.reply}")
    grad = rounds.gradient(store.rank, task.elements)
    total = np.zeros_like(grad)
    store.init(0, total)
    expectation = task.known_expectation(store.rank) or CodecSum(
        task.share_of_grads(store.rank), task.codec, task.reply
    )
    actions = rounds.Actions(
        barrier=store.barrier,
        prepare=lambda: None,
        exchange=lambda: store.pushpull(0, grad, out=total),
        result=lambda: total,
        sent_bytes=lambda: int(store.engine.counters()["bytes_sent"]),
    )
    rounds.run(task, store.rank, actions, expectation)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1])
