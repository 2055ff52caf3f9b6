"""Sums of compressed tensors over whatever can gather bytes: for stores that know nothing of codecs.

Every rank encodes, gathers all ranks' payloads, and does what a server would with them: so all get the same answer, the
one that gradwire's own stores give, to the bit. It costs N - 1 payloads to each rank where those move 2 (N-1)/N.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwire.compress import Compression, make

Gather = Callable[[Any], Sequence[Any]]
"""Gives every rank's payload (uint8 arrays, whose lengths may differ) in rank order. A collective."""


@dataclass
class _Tensor:
    """What rounds of one tensor leave for the next."""

    residual: Any
    reply_residual: Any
    scales: Any = None
    step: int = 0


class GatheredSum:
    """One rank's end. Every rank calls add() for the same tensors in the same order."""

    def __init__(self, compression: Compression, rank: int, gather: Gather) -> None:
        self._codec = make(compression.spec)
        self._reply = compression.reply
        self._rank = rank
        self._gather = gather
        self._tensors: dict[Hashable, _Tensor] = {}
        self._keys: dict[Hashable, int] = {}

    def add(self, name: Hashable, values: Any) -> Any:
        """Returns the sum over all ranks: float32 (n,).

        Args:
            name: of the tensor; its residual goes by it.
            values: float32 (n,), contiguous; n is the same at every call.
        """
        tensor = self._tensors.setdefault(name, self._new(values.size))
        key = self._keys.setdefault(name, len(self._keys))
        own = self._codec.encode(
            values,
            residual=tensor.residual,
            scales=tensor.scales,
            key=key,
            rank=self._rank,
            step=tensor.step,
        )
        payloads = list(self._gather(own))
        answer = self._codec.encode_reply(
            payloads, values.size, reply=self._reply, residual=tensor.reply_residual
        )
        total, tensor.scales = self._codec.decode_reply(answer, len(payloads), values.size, reply=self._reply)
        tensor.step += 1
        return total

    def _new(self, elements: int) -> _Tensor:
        """The answer loses something only where it is encoded by a lossy codec again."""
        lossy_answer = self._codec.lossy and self._reply == self._codec.name
        residual = np.zeros(elements, np.float32) if self._codec.lossy else None
        return _Tensor(residual, np.zeros(elements, np.float32) if lossy_answer else None)
