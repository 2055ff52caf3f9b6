"""How a step's mean is made of what the workers give of one tensor, flat: without sockets, with the real codecs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gradwire
import numpy as np
import torch
from gradwire import compress
from gradwire.power_sgd import PowerSGD
from gradwire.torch.session import parse_compression
from numpy.typing import NDArray
from quantizers import Levels

Floats = NDArray[np.float32]
TURN_BLOCK = 128  # elements


class Averager(Protocol):
    """Makes the mean of one tensor.

    Attributes:
        bits: sent and received by one worker so far.
    """

    bits: float

    def mean(self, given: Sequence[Floats], step: int) -> Floats:
        """given: each worker's (elements,)."""
        ...


class OfCodec:
    """A codec of gradwire, with the residuals of workers and server, and the scales that all have agreed on."""

    def __init__(
        self,
        spec: str,
        elements: int,
        key: int,
        workers: int,
        *,
        decay: float = 1.0,
        feedback: bool = True,
        residuals: str = "float32",
    ) -> None:
        """residuals: in which the workers' are kept: "float32", "bfloat16", or "none": not at all."""
        chosen = parse_compression(spec)
        self.bits = 0.0
        self._codec = compress.make(chosen.spec)
        self._reply, self._key, self._decay = chosen.reply, key, np.float32(decay)
        self._rounds = residuals == "bfloat16"
        keeps = self._codec.lossy and feedback
        workers_keep = keeps and residuals != "none"
        self._residuals = [np.zeros(elements, np.float32) if workers_keep else None for _ in range(workers)]
        self._of_server = (
            np.zeros(elements, np.float32) if keeps and self._reply == self._codec.name else None
        )
        self._scales: Any = None

    def take_over(self, before: OfCodec) -> None:
        """Goes on with the workers' residuals of the codec that was used until now."""
        _take_over(self._residuals, before)

    def mean(self, given: Sequence[Floats], step: int) -> Floats:
        if self._decay != 1:
            for kept in (*self._residuals, self._of_server):
                if kept is not None:
                    kept *= self._decay
        codec, elements = self._codec, given[0].size
        payloads = [
            codec.encode(own, residual=kept, scales=self._scales, key=self._key, rank=rank, step=step)
            for rank, (own, kept) in enumerate(zip(given, self._residuals, strict=True))
        ]
        if self._rounds:
            for kept in self._residuals:
                if kept is not None:
                    kept[:] = torch.from_numpy(kept).bfloat16().float().numpy()
        reply = codec.encode_reply(payloads, elements, reply=self._reply, residual=self._of_server)
        total, self._scales = codec.decode_reply(reply, len(given), elements, reply=self._reply)
        self.bits += 8.0 * (payloads[0].nbytes + reply.nbytes)
        total *= np.float32(1 / len(given))
        return total


class OfLevels:
    """A quantizer of this experiment, with error feedback at the workers and at the server."""

    def __init__(self, levels: Levels, elements: int, key: int, workers: int, *, decay: float = 1.0) -> None:
        self.bits = 0.0
        self._levels, self._decay = levels, np.float32(decay)
        self._residuals = [np.zeros(elements, np.float32) for _ in range(workers)]
        self._of_server = np.zeros(elements, np.float32)
        padded = elements + -elements % levels.block
        self._signs = np.random.default_rng(key).choice(np.float32([-1, 1]), size=padded)

    def take_over(self, before: OfCodec) -> None:
        """As OfCodec's."""
        _take_over(self._residuals, before)

    def mean(self, given: Sequence[Floats], step: int) -> Floats:
        sent = [self._sent(own, kept) for own, kept in zip(given, self._residuals, strict=True)]
        mean: Floats = sum(sent[1:], start=sent[0]) / np.float32(len(given))
        answers_alike = self._levels.reply == "own"
        if answers_alike:
            mean = self._sent(mean, self._of_server)
        self.bits += (self._levels.bits + (self._levels.bits if answers_alike else 32)) * mean.size
        return mean

    def _sent(self, own: Floats, kept: Floats) -> Floats:
        wanted = own + self._decay * kept
        sent = self._levels.rounded(wanted, self._signs)
        kept[:] = wanted - sent
        return sent


def _take_over(residuals: Sequence[Floats | None], before: OfCodec) -> None:
    for own, theirs in zip(residuals, before._residuals, strict=True):
        if own is not None and theirs is not None:
            own += theirs


class Turns:
    """Sends one of `turns` parts of a tensor in a step, part after part. The others add up until it is their turn, as
    in a codec that keeps blocks in a fixed order.
    """

    def __init__(self, turns: int, elements: int, workers: int, make: Callable[[int, int], Averager]) -> None:
        """make: an averager, for a number of elements and the number of a part."""
        parts = (np.arange(elements) // TURN_BLOCK) % turns
        self._places = [np.flatnonzero(parts == part) for part in range(turns)]
        self._averagers = [
            make(places.size, part) if places.size else None for part, places in enumerate(self._places)
        ]
        self._waiting = [np.zeros(elements, np.float32) for _ in range(workers)]

    @property
    def bits(self) -> float:
        return sum(averager.bits for averager in self._averagers if averager is not None)

    def mean(self, given: Sequence[Floats], step: int) -> Floats:
        for waiting, own in zip(self._waiting, given, strict=True):
            waiting += own
        turn = step % len(self._places)
        places, averager = self._places[turn], self._averagers[turn]
        mean = np.zeros_like(given[0])
        if averager is not None:
            mean[places] = averager.mean([waiting[places] for waiting in self._waiting], step)
        for waiting in self._waiting:
            waiting[places] = 0
        return mean


class OfPowerSgd:
    """PowerSGD over all matrices of a model. One worker with the workers' mean gets what they all would, as it is
    linear in gradients and errors (Vogels et al. 2019, section 3).
    """

    def __init__(self, rank: int, shapes: Sequence[tuple[int, ...]]) -> None:
        self._shapes = shapes
        self._power = PowerSGD(gradwire.kv.create("local"), list(shapes), rank=rank)

    def means(self, given: Sequence[Floats]) -> None:
        """Replaces the workers' mean of each tensor."""
        shaped = [torch.from_numpy(own).view(shape) for own, shape in zip(given, self._shapes, strict=True)]
        self._power.all_reduce(shaped)
