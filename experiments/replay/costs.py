"""What a codec costs at full size, measured here and now: the model's own gradients are too small to show it.

Threading: one thread, which is what a worker's codec pool and a server have in the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gradwire import compress
from gradwire.bench.rounds import gradient
from gradwire.compress import Compression

_SETS = 8  # partitions taken in turns, so that one is not in a core's cache when its turn comes again
_PASSES = 6


@dataclass(frozen=True)
class Costs:
    """Seconds per element of the full-size gradient, and what it is on the wire.

    encode and decode: in a worker; serve: in a server, from the payloads of all workers to the encoded reply.
    """

    encode: float
    decode: float
    serve: float
    push_bytes: float  # per element
    reply_bytes: float

    def seconds_per_step(self, elements: int, owners: int) -> float:
        """Returns what one step of so many elements costs, one stage behind the other, a server its share."""
        return elements * (self.encode + self.decode + self.serve / owners)


def measure(compression: Compression, workers: int, partition_elements: int) -> Costs:
    """Times one full-size partition through every stage. An uncompressed one is sent from where it lies."""
    codec = compress.make(compression.spec)
    grads = [gradient(seed, partition_elements) for seed in range(_SETS)]
    payloads = [codec.encode(grad) for grad in grads]

    def serve(number: int) -> Any:
        turned = [payloads[(number + worker) % _SETS] for worker in range(workers)]
        return codec.encode_reply(turned, partition_elements, reply=compression.reply)

    replies = [serve(number) for number in range(_SETS)]
    residuals = [np.zeros_like(grad) if codec.lossy else None for grad in grads]
    room = np.empty(codec.max_encoded_size(partition_elements), np.uint8)

    def encode(number: int) -> object:
        return codec.encode(grads[number], residual=residuals[number], out=room)

    def decode(number: int) -> object:
        return codec.decode_reply(replies[number], workers, partition_elements, reply=compression.reply)

    free = compression.spec == "none"
    return Costs(
        encode=0.0 if free else _seconds(encode) / partition_elements,
        decode=_seconds(decode) / partition_elements,
        serve=_seconds(serve) / partition_elements,
        push_bytes=payloads[0].size / partition_elements,
        reply_bytes=replies[0].size / partition_elements,
    )


def frame_payloads(compression: Compression, workers: int, sizes: list[int]) -> tuple[list[int], list[int]]:
    """Returns the bytes of a push and of the reply to it, for pieces of so many elements."""
    codec = compress.make(compression.spec)
    known: dict[int, tuple[int, int]] = {}
    for elements in set(sizes):
        payload = codec.encode(gradient(0, elements))
        reply = codec.encode_reply([payload] * workers, elements, reply=compression.reply)
        known[elements] = payload.size, reply.size
    return [known[size][0] for size in sizes], [known[size][1] for size in sizes]


def _seconds(work: Callable[[int], object]) -> float:
    """Returns one call's time in the fastest pass: whatever else the machine does only adds to it."""
    taken = []
    for _ in range(_PASSES):
        began = time.perf_counter()
        for number in range(_SETS):
            work(number)
        taken.append((time.perf_counter() - began) / _SETS)
    return min(taken)
