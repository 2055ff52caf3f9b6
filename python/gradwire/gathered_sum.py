"""Sums of compressed tensors for stores that can gather bytes but do not know codecs.

Every rank encodes, gathers all ranks' payloads, and computes what a server would. So all get the same result, with the
bits of gradwire's own stores; except codecs that draw random numbers (qsgd, terngrad, natural, randomk), which draw
others here. Each rank receives N - 1 payloads; gradwire's own stores move 2 (N-1)/N.

Codecs leave NaNs and infinities out, so a byte behind each payload reports them. The sum is then NaN on all ranks, with
a warning, and residuals do not change. (`nonfinite=mxnet` keeps MXNet's behaviour.) Of a value beyond the codec's
format, such as fp16's 65504, the largest value is sent and the rest kept, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from gradwire.compress import Codec, Compression, make

__all__ = ["Gather", "GatheredSum"]

Gather = Callable[[Any], Sequence[Any]]
"""Gives every rank's payload (uint8 arrays, whose lengths may differ) in rank order. A collective."""


class Met(IntEnum):
    """What an encoder met of which its payload says nothing. The worse, the higher; it travels."""

    ZEROS = 0  # no gradient at all, where who encodes says so
    NOTHING = 1
    BEYOND = 2  # a value that the format cannot hold: the largest was sent, and the rest kept
    NONFINITE = 3  # a NaN or an infinity: 0 was sent


def encode(codec: Codec, spec: str, values: Any, **options: Any) -> tuple[Any, Met]:
    """Encodes as Codec.encode() with these options; returns the payload, and what was met.

    Args:
        codec: of spec.
        spec: `nonfinite=mxnet` in it sends what is not finite in its own way.
        values: float32 (n,).
    """
    payload, flagged = codec.encode_flagged(values, **options)
    if not flagged or not codec.lossy or "nonfinite=mxnet" in spec:
        return payload, Met.NOTHING
    return payload, Met.BEYOND if np.isfinite(values).all() else Met.NONFINITE


def noted(payload: Any, met: Met) -> Any:
    """A payload with one byte behind it: uint8 (n + 1,)."""
    return np.append(payload, np.uint8(met))


def read(payloads: Sequence[Any]) -> tuple[list[Any], Met]:
    """What ranks gave to noted(): their payloads, and the worst that any of them met."""
    return [np.ascontiguousarray(p[:-1]) for p in payloads], Met(max(int(p[-1]) for p in payloads))


def warn_of_nan_sum() -> None:
    warnings.warn(
        "gradwire: a worker's gradient held a NaN or an infinity; the sum is NaN on every rank, and residuals are as "
        "they were before",
        RuntimeWarning,
        stacklevel=3,
    )


def warn_of_kept_rest() -> None:
    warnings.warn(
        "gradwire: a worker's gradient held a value beyond what the codec's format can (fp16: 65504); its largest was "
        "sent, and the rest is kept for the next sum, if residuals are",
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
    """One rank's end of the sums. Every rank calls add() for the same tensors in the same order."""

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
            name: name of the tensor, by which its residual is kept.
            values: float32 (n,), contiguous; n is the same in every call with this name.
        """
        tensor = self._tensors.setdefault(name, self._new(values.size))
        key = self._keys.setdefault(name, len(self._keys))
        before = None if tensor.residual is None else tensor.residual.copy()
        own, met = encode(
            self._codec,
            self._spec,
            values,
            residual=tensor.residual,
            scales=tensor.scales,
            key=key,
            rank=self._rank,
            step=tensor.step,
        )
        payloads, worst = read(self._gather(noted(own, met)))
        if worst == Met.NONFINITE:
            tensor.residual = before
            warn_of_nan_sum()
            return np.full(values.size, np.nan, np.float32)
        if worst == Met.BEYOND:
            warn_of_kept_rest()
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
