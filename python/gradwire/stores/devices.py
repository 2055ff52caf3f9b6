"""The sum of one key's values from several devices of one worker, compressed or not."""

from __future__ import annotations

import time
import zlib
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from gradwire import compress
from gradwire.stores import codec_stats
from gradwire.stores.nonfinite import NonfiniteSums, is_sent


class DeviceSum:
    """Adds the devices' values in the order given; a lossy codec keeps one residual per (key, device).

    MXNet's `device` store does the same: each device quantises with a residual of its own, the codes are summed, and
    only the sum is stored (mxnet src/kvstore/comm.h, ReduceCompressed).
    """

    def __init__(self, spec: str, nonfinite: NonfiniteSums) -> None:
        """Encodes by spec. nonfinite: who warns of what is not finite."""
        self._nonfinite = nonfinite
        self._residuals: dict[tuple[Hashable, int], Any] = {}
        self._scales: dict[Hashable, Any] = {}
        self._scales_of = ""  # the codec that agreed them
        self._bytes_raw = self._bytes_encoded = self._bytes_summed = 0
        self._codec_seconds = 0.0
        self._met_nonfinite = False  # in the sum in progress
        self._rounds: dict[Hashable, int] = {}  # of a key, by which codecs draw their random numbers
        self._shares: dict[
            tuple[Hashable, int], tuple[float, float]
        ] = {}  # |x|^2 and |residual|^2, when measured
        self.use(spec)

    def use(self, spec: str) -> None:
        """Encodes by this codec from now on. What was not sent is kept, and so are the codec's scales."""
        self._spec, self._codec = spec, compress.make(spec)

    def add(self, key: Hashable, values: Sequence[Any]) -> Any:
        """Returns the sum, of the values' shape: of their dtype, or float32 where a codec has compressed them. Where a
        value is not finite, of which codecs send 0, it is what it would be without, with a warning.

        Args:
            key: names the tensor; the same shape at every call.
            values: contiguous arrays of float32 or float64, NumPy's or PyTorch's on the CPU, one per device, all of one
                shape and dtype.
        """
        arrays = [np.asarray(value) for value in values]
        if not self._codec.lossy:
            total = np.array(arrays[0])
            for array in arrays[1:]:
                total += array
            self._add_leftover(key, total)
            return total
        began = time.perf_counter()
        if self._scales_of != self._spec:
            self._scales, self._scales_of = {}, self._spec
        self._met_nonfinite = False
        # A float64 may be infinite as float32.
        with np.errstate(over="ignore"):
            arrays = [np.asarray(array, np.float32) for array in arrays]
        payloads = [self._encode(key, device, array) for device, array in enumerate(arrays)]
        self._rounds[key] = self._rounds.get(key, 0) + 1
        size = int(arrays[0].size)
        reply = self._codec.encode_reply(payloads, size, reply="fp32")
        total, self._scales[key] = self._codec.decode_reply(reply, len(payloads), size, reply="fp32")
        self._bytes_raw += 4 * size * len(payloads)
        self._bytes_encoded += sum(payload.nbytes for payload in payloads)
        self._codec_seconds += time.perf_counter() - began
        total = total.reshape(arrays[0].shape)
        if self._met_nonfinite and not is_sent(self._spec):
            self._put_back_nonfinite(key, arrays, total)
        return total

    def _put_back_nonfinite(self, key: Hashable, arrays: Sequence[Any], total: Any) -> None:
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf
            exact = np.sum(arrays, axis=0)
        missing = ~np.logical_and.reduce([np.isfinite(array) for array in arrays])
        self._nonfinite.warn(
            key, self._spec, "of what is not finite the sum is what it is without a codec", exact
        )
        total[missing] = exact[missing]

    def has_leftover(self, key: Hashable) -> bool:
        """Whether a codec has not sent all of a key yet, on any device."""
        return any(place[0] == key for place in self._residuals)

    def _add_leftover(self, key: Hashable, total: Any) -> None:
        """Adds what a lossy codec before this one has not sent of a key, on any device, to the sum that is stored. An
        element that is not finite keeps it.
        """
        finite = np.isfinite(total)
        for place in [place for place in self._residuals if place[0] == key]:
            residual = self._residuals.pop(place).reshape(total.shape)
            total += np.where(finite, residual, 0)
            if (kept := np.where(finite, 0, residual)).any():
                self._residuals[place] = kept.reshape(-1)

    @staticmethod
    def add_on_device(values: Sequence[Any]) -> Any:
        """Returns the sum, uncompressed, on the device of the first value, with the bits that add() gives.

        Args:
            values: float32 tensors of PyTorch, each on a device, all of one shape.
        """
        total = values[0].clone()
        for value in values[1:]:
            total += value.to(total.device)
        return total

    def summed(self, key: Hashable, values: Sequence[Any]) -> Any:
        """add(), where the sum is then pushed to an engine: stats_beside() leaves out what that counts for it."""
        total = self.add(key, values)
        if self._codec.lossy:
            self._bytes_summed += total.nbytes
        return total

    def stats_beside(self, engine: dict[str, Any], residuals: bool) -> dict[str, Any]:
        """Returns those of a store's stats() that are other than its engine's alone, since devices encode. On any
        thread: what add() may change meanwhile is listed first.

        Args:
            engine: the engine's.
            residuals: whether residual_norm and share_sent are asked for.
        """
        # The engine may not have sent the last sums yet, which are not counted in either case.
        of_sums = min(self._bytes_summed, engine["bytes_encoded"])
        found = codec_stats.with_others(
            engine,
            self._bytes_raw - self._bytes_summed,
            self._bytes_encoded - of_sums,
            lambda: sum(map(_squares, list(self._residuals.values()))),
            self._codec_seconds,
        )
        if residuals and self._shares and self._codec.lossy:
            shares = list(self._shares.values())
            given = sum(one for one, _ in shares)
            left = sum(one for _, one in shares)
            found["share_sent"] = 1 - left / given if given else 1.0
        return found

    def state(
        self,
    ) -> tuple[dict[tuple[Hashable, int], Any], dict[Hashable, Any], str, dict[Hashable, int]]:
        """Returns what the next add() depends on: residuals by (key, device), float32 (elements,); agreed
        scales by key, float32 (units, 2); whose they are; and numbers of rounds by key.
        """
        agreed = {key: scales for key, scales in self._scales.items() if scales is not None}
        return dict(self._residuals), agreed, self._scales_of, dict(self._rounds)

    def load(
        self,
        residuals: dict[tuple[Hashable, int], Any],
        scales: dict[Hashable, Any],
        scales_of: str,
        rounds: dict[Hashable, int],
    ) -> None:
        """Goes on from what state() returned; by the codec in use, or one that use() sets before the next add()."""
        self._residuals, self._scales, self._scales_of = dict(residuals), dict(scales), scales_of
        self._rounds = dict(rounds)

    def _encode(self, key: Hashable, device: int, value: Any) -> Any:
        place = (key, device)
        residual = self._residuals.setdefault(place, np.zeros(value.size, np.float32))
        flat, step = value.reshape(-1), self._rounds.get(key, 0)
        measures = step < 2 or step % 16 == 0  # as the engine: it takes two more passes
        given = _squares(flat + residual) if measures else 0.0
        payload, flagged = self._codec.encode_flagged(
            flat,
            residual=residual,
            scales=self._scales.get(key),
            # The same number in a run that resumes, whatever the order of its keys.
            key=zlib.crc32(str(key).encode()),
            rank=device,
            step=step,
        )
        self._met_nonfinite |= flagged
        if measures:
            self._shares[place] = (given, _squares(residual))
        return payload


def _squares(values: Any) -> float:
    """The sum of the squares of those that are finite; codecs leave out what is not."""
    wide = values.astype(np.float64)
    return float(np.sum(np.square(wide, where=np.isfinite(wide), out=np.zeros_like(wide))))


def is_on_device(value: Any) -> bool:
    """True for a tensor of PyTorch on a CUDA device."""
    return getattr(getattr(value, "device", None), "type", "cpu") == "cuda"


def on_host(value: Any) -> Any:
    """Returns an array on the CPU: itself, or a copy of what lies on a device."""
    return value.cpu() if is_on_device(value) else value


def stream_of(array: Any) -> dict[str, int]:
    """What an engine's call needs beside an array on a CUDA device: the stream that may still be using it."""
    if not is_on_device(array):
        return {}
    import torch  # array is a torch tensor, so torch is there

    return {"stream": torch.cuda.current_stream(array.device).cuda_stream}
