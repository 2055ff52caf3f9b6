"""How wrong would a step's mean be? Every candidate on the job's real gradients, with its error feedback.

A few hundred to a few thousand elements of each tensor stand for all of it. Workers' residuals, the server's and the
reply are as in a job; the relative error is that of experiments/codec_accuracy: ||received - mean|| / ||mean||, of a
step.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradwire import compress
from gradwire.controller.plan import CANDIDATES, Tensor, compression_of

Floats = NDArray[np.float32]

MOST_WORKERS = 8  # whose samples are looked at; of more, the first ones stand for all
_BLOCK = 512  # elements, contiguous: two blocks of int8 and int4
_MOST_BLOCKS = 8  # of a tensor
_MOST_ELEMENTS = 262_144  # of all tensors: what a worker sends of a step beside its gradients is at most 1 MB


def blocks(tensors: Sequence[Tensor]) -> list[tuple[tuple[int, int], ...]]:
    """Returns where each tensor is sampled: (from, to) in elements, spread evenly; () of those that are not free."""
    free = sum(tensor.free for tensor in tensors)
    count = max(1, min(_MOST_BLOCKS, _MOST_ELEMENTS // (_BLOCK * max(1, free))))
    return [_spread(tensor.elements, count) if tensor.free else () for tensor in tensors]


def _spread(elements: int, count: int) -> tuple[tuple[int, int], ...]:
    if elements <= count * _BLOCK:
        return ((0, elements),)
    starts = [i * (elements - _BLOCK) // max(1, count - 1) for i in range(count)]
    return tuple((start, start + _BLOCK) for start in starts)


class SimulatedMean:
    """One tensor that travels by one codec from several workers and back."""

    def __init__(self, compression: compress.Compression, elements: int, workers: int, key: int) -> None:
        self._codec = compress.make(compression.spec)
        self._reply = compression.reply
        self._key = key
        self._residuals = [np.zeros(elements, np.float32) for _ in range(workers)]
        answers_in_itself = compression.reply == self._codec.name
        self._reply_residual = np.zeros(elements, np.float32) if answers_in_itself else None

    def mean(self, given: Sequence[Floats], step: int) -> Floats:
        """Returns the mean that workers get of what they have given."""
        elements = given[0].size
        payloads = [
            self._codec.encode(own, residual=kept, key=self._key, rank=rank, step=step)
            for rank, (own, kept) in enumerate(zip(given, self._residuals, strict=True))
        ]
        reply = self._codec.encode_reply(payloads, elements, reply=self._reply, residual=self._reply_residual)
        total, _ = self._codec.decode_reply(reply, len(given), elements, reply=self._reply)
        total *= np.float32(1 / len(given))
        return np.asarray(total)


class ErrorMeter:
    """Follows every free tensor under lossy candidates."""

    def __init__(self, tensors: Sequence[Tensor], candidates: Sequence[str] = CANDIDATES[1:]) -> None:
        self._candidates = candidates
        self._sizes = [sum(end - start for start, end in own) for own in blocks(tensors)]
        self._means: dict[tuple[int, str], SimulatedMean] = {}
        self._errors: dict[tuple[int, str], list[float]] = {}
        self._steps = 0

    @property
    def elements(self) -> int:
        """Of a worker's samples of a step."""
        return sum(self._sizes)

    def add(self, samples: Sequence[Floats]) -> None:
        """Takes a step: each worker's samples, tensor behind tensor. One with a NaN or an infinity is passed over."""
        if not all(bool(np.isfinite(sample).all()) for sample in samples):
            return
        ends = np.cumsum(self._sizes)
        for index, (size, end) in enumerate(zip(self._sizes, ends, strict=True)):
            if size:
                self._add_tensor(index, [np.ascontiguousarray(own[end - size : end]) for own in samples])
        self._steps += 1

    def _add_tensor(self, index: int, given: Sequence[Floats]) -> None:
        exact = np.mean(given, axis=0, dtype=np.float64)
        length = float(np.linalg.norm(exact))
        for candidate in self._candidates:
            place = index, candidate
            if place not in self._means:
                self._means[place] = SimulatedMean(
                    compression_of(candidate), given[0].size, len(given), index
                )
            received = self._means[place].mean(given, self._steps)
            if length > 0:  # else nothing was to be sent: an expert that no example chose
                error = float(np.linalg.norm(received - exact)) / length
                self._errors.setdefault(place, []).append(error)

    def errors(self) -> list[dict[str, float]]:
        """Returns each tensor's median error in its later steps, by candidate; none where no step says it."""
        found: list[dict[str, float]] = [{"none": 0.0} for _ in self._sizes]
        for (index, candidate), values in self._errors.items():
            found[index][candidate] = statistics.median(values[len(values) // 2 :])
        return found
