"""Sums of compressed tensors over whatever can gather bytes: for stores that know nothing of codecs.

Every rank encodes, gathers all ranks' payloads, and does what a server would with them: so all get the same answer, the
one that gradwire's own stores give, to the bit. It costs N - 1 payloads to each rank where those move 2 (N-1)/N.

Codecs leave NaNs and infinities out, so a byte behind each payload tells the others of them: the sum is then NaN
everywhere, with a warning, and nothing else has changed. (`nonfinite=mxnet` is MXNet's own way, and stays that.)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwire.compress import Codec, Compression, make

__all__ = ["Gather", "GatheredSum"]

Gather = Callable[[Any], Sequence[Any]]
"""Gives every rank's payload (uint8 arrays, whose lengths may differ) in rank order. A collective."""


def loses_nonfinite(codec: Codec, spec: str, values: Any) -> bool:
    """True where values, float32, hold a NaN or an infinity of which a codec's payload would say nothing."""
    return codec.lossy and "nonfinite=mxnet" not in spec and not np.isfinite(values).all()


def flagged(payload: Any, nonfinite: bool) -> Any:
    """A payload with one byte behind it: uint8 (n + 1,)."""
    return np.append(payload, np.uint8(nonfinite))


def unflagged(payloads: Sequence[Any]) -> tuple[list[Any], bool]:
    """What ranks gave to flagged(): their payloads, and whether any of them said so."""
    return [np.ascontiguousarray(p[:-1]) for p in payloads], any(bool(p[-1]) for p in payloads)


def warn_of_nan_sum() -> None:
    warnings.warn(
        "gradwire: a worker's gradient held a NaN or an infinity; the sum is NaN on every rank, and residuals are as "
        "they were before",
        RuntimeWarning,
        stacklevel=3,
    )


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
        """Begins without residuals.

        Args:
            compression: codec and reply, the same on all ranks.
            rank: this worker's number, from 0.
            gather: gives every rank's payload, uint8 (n,), in rank order; lengths may differ.
        """
        self._codec = make(compression.spec)
        self._spec = compression.spec
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
        before = None if tensor.residual is None else tensor.residual.copy()
        own = self._codec.encode(
            values,
            residual=tensor.residual,
            scales=tensor.scales,
            key=key,
            rank=self._rank,
            step=tensor.step,
        )
        gathered = self._gather(flagged(own, loses_nonfinite(self._codec, self._spec, values)))
        payloads, nonfinite = unflagged(gathered)
        if nonfinite:
            tensor.residual = before
            warn_of_nan_sum()
            return np.full(values.size, np.nan, np.float32)
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
