"""What a reduce-scatter encodes and sums, where the gradients are: on the CPU, or on a CUDA device, from which only
payloads go to the host.

Threading: one thread at a time, that of the store's collectives; ready() on the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from gradwire import _core, compress
from gradwire.gathered_sum import Met, encode

_ALIGNMENT = 8  # bytes, of payloads on a device


class ShardCodec(Protocol):
    """Encodes the shards of one reduce-scatter, and sums what other ranks sent of this rank's.

    Attributes:
        is_on_host: the thread that encodes does it itself.
    """

    is_on_host: bool

    def ready(self, shards: torch.Tensor) -> tuple[torch.Tensor, Callable[[], object]]:
        """Returns the shards where they are encoded, and what the thread that encodes has to call first. To be called
        where the stream that makes them is the current one.
        """

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Within it the thread that encodes works on the shards; at its end all is done."""
        yield

    def encode(
        self,
        shards: torch.Tensor,
        residuals: Sequence[torch.Tensor | None],
        scales: Sequence[torch.Tensor | None],
        *,
        first_key: int,
        rank: int,
        step: int,
    ) -> tuple[list[Any], Met]:
        """Encodes each shard and its residual, which is updated in place.

        Args:
            shards: float32 (ranks, elements).
            residuals: of each, float32 (elements,); None: what is not sent is lost.
            scales: of each, float32 (units, 2); None: none is agreed.
            first_key: the first shard's number among all that are summed, for codecs that draw.
            rank: this one.
            step: number of the sum.

        Returns: payloads, uint8 arrays of NumPy's; and the worst that was met, ZEROS if all was 0.
        """

    def total(self, payloads: Sequence[Any], elements: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns the sum in rank order, float32 (elements,), and the scales of the next one, on the CPU: float32
        (units, 2), where the codec agrees them.
        """


class HostShards:
    """On the CPU, by the codec itself. Gradients of another device are copied."""

    is_on_host = True

    def __init__(self, spec: str) -> None:
        self._spec = spec
        self._codec = compress.make(spec)

    def ready(self, shards: torch.Tensor) -> tuple[torch.Tensor, Callable[[], object]]:
        if shards.device.type == "cpu":
            return shards, lambda: None
        staged = torch.empty_like(shards, device="cpu", pin_memory=True).copy_(shards, non_blocking=True)
        copied = torch.Event(shards.device)
        copied.record()
        return staged, copied.synchronize

    @contextmanager
    def at_work(self) -> Iterator[None]:
        yield

    def encode(
        self,
        shards: torch.Tensor,
        residuals: Sequence[torch.Tensor | None],
        scales: Sequence[torch.Tensor | None],
        *,
        first_key: int,
        rank: int,
        step: int,
    ) -> tuple[list[Any], Met]:
        made = [
            encode(
                self._codec,
                self._spec,
                np.ascontiguousarray(shard.numpy()),
                residual=None if residual is None else residual.numpy(),
                scales=None if agreed is None else agreed.numpy(),
                key=first_key + owner,
                rank=rank,
                step=step,
            )
            for owner, (shard, residual, agreed) in enumerate(zip(shards, residuals, scales, strict=True))
        ]
        met = max(each for _, each in made)
        if met == Met.NOTHING and not shards.any():
            met = Met.ZEROS
        return [payload for payload, _ in made], met

    def total(self, payloads: Sequence[Any], elements: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not self._codec.agrees_scales:
            return torch.from_numpy(self._codec.decode_sum(payloads, elements)), None
        reply = self._codec.encode_reply(payloads, elements, reply="fp32")
        total, scales = self._codec.decode_reply(reply, len(payloads), elements, reply="fp32")
        return torch.from_numpy(total), torch.from_numpy(scales)


class SideStream:
    """A stream of a CUDA device, beside those of the framework."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def handle(self) -> int:
        """The cudaStream_t."""
        return self._stream.cuda_stream

    def after_current(self) -> Callable[[], object]:
        """Returns what has it wait for all that the caller's current stream was given until now."""
        written = torch.cuda.current_stream(self._stream.device).record_event()
        return lambda: self._stream.wait_event(written)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Within it this is the thread's current stream, and its device the current one."""
        with torch.cuda.stream(self._stream):
            yield

    def synchronize(self) -> None:
        self._stream.synchronize()


class DeviceShards:
    """On one CUDA device, by the codec's twin: the bits of HostShards."""

    is_on_host = False

    def __init__(self, spec: str, twin: Any, device: torch.device) -> None:
        """
        Args:
            spec: of the codec.
            twin: of it, a _core.DeviceCodec.
            device: where gradients lie.
        """
        self._spec = spec
        self._codec = compress.make(spec)
        self._twin = twin
        self._device = device
        self._stream = SideStream(device)
        self._scratch = torch.empty(0, dtype=torch.uint8, device=device)

    def ready(self, shards: torch.Tensor) -> tuple[torch.Tensor, Callable[[], object]]:
        return shards, self._stream.after_current()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with self._stream.current():
            yield
            # The caller's streams may use the sum, and reuse the memory of the shards, without a thought of this one.
            self._stream.synchronize()

    def encode(
        self,
        shards: torch.Tensor,
        residuals: Sequence[torch.Tensor | None],
        scales: Sequence[torch.Tensor | None],
        *,
        first_key: int,
        rank: int,
        step: int,
    ) -> tuple[list[Any], Met]:
        shards = shards.contiguous()
        elements = shards.shape[1]
        made = self._new(len(shards), _padded(self._codec.max_encoded_size(elements)), dtype=torch.uint8)
        reports = self._zeros(len(shards), 2)
        lengths = [
            self._twin.encode(
                shard,
                residual=residual,
                scales=agreed,
                key=first_key + owner,
                rank=rank,
                step=step,
                out=out,
                report=report,
                scratch=self._room(elements),
                stream=self._stream.handle,
            )
            for owner, (shard, residual, agreed, out, report) in enumerate(
                zip(shards, residuals, scales, made, reports, strict=True)
            )
        ]
        found = torch.stack([reports[:, 0].any(), shards.isfinite().all(), shards.any()])
        payloads, (is_flagged, is_finite, is_given) = self._fetch(made), self._fetch(found)
        self._stream.synchronize()
        return [
            payload[:length] for payload, length in zip(payloads.numpy(), lengths, strict=True)
        ], self._met(bool(is_flagged), bool(is_finite), bool(is_given))

    def _met(self, is_flagged: bool, is_finite: bool, is_given: bool) -> Met:
        """As encode() of gathered_sum.py has it."""
        if is_flagged and "nonfinite=mxnet" not in self._spec:
            return Met.BEYOND if is_finite else Met.NONFINITE
        return Met.NOTHING if is_given else Met.ZEROS

    def total(self, payloads: Sequence[Any], elements: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        stride = _padded(max(len(payload) for payload in payloads))
        staged = torch.empty(len(payloads), stride, dtype=torch.uint8, device="cpu", pin_memory=self._pins)
        for row, payload in zip(staged.numpy(), payloads, strict=True):
            row[: len(payload)] = payload
        block, report = staged.to(self._device, non_blocking=True), self._zeros(2)
        out, stream = self._new(elements), self._stream.handle
        if not self._codec.agrees_scales:
            self._twin.decode_sum(payloads, block, out=out, report=report, stream=stream)
            return out, None
        reply = self._new(self._twin.sum_bytes(elements, len(payloads)), dtype=torch.uint8)
        length = self._twin.encode_sum(
            payloads,
            block,
            elements,
            out=reply,
            report=report,
            scratch=self._room(elements),
            stream=stream,
        )
        head = length - 4 * elements  # what is checked on the host; the sum behind it stays on the device
        checked = np.zeros(length, np.uint8)
        fetched = self._fetch(reply[:head])
        self._stream.synchronize()
        checked[:head] = fetched.numpy()
        next_scales = self._new(-(-elements // _core.UNIT_ELEMENTS), 2)
        self._twin.read_sum(
            checked,
            reply[:length],
            len(payloads),
            out=out,
            scales=next_scales,
            report=report,
            stream=stream,
        )
        return out, next_scales.cpu()

    @property
    def _pins(self) -> bool:
        return self._device.type != "cpu"

    def _new(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device=self._device)

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.int32, device=self._device)

    def _room(self, elements: int) -> torch.Tensor:
        """What the twin works with: one call after the other uses the same."""
        wanted = self._twin.scratch_bytes(elements)
        if len(self._scratch) < wanted or len(self._scratch) == 0:
            self._scratch = self._new(max(wanted, _ALIGNMENT), dtype=torch.uint8)
        return self._scratch

    def _fetch(self, values: torch.Tensor) -> torch.Tensor:
        """Begins to copy values to the host; they are there once the stream is done."""
        there = torch.empty_like(values, device="cpu", pin_memory=self._pins)
        return there.copy_(values, non_blocking=True)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def shard_codec(spec: str, device: torch.device) -> ShardCodec:
    """Returns what encodes gradients of a device, there if the codec can."""
    if device.type == "cuda" and compress.make(spec).lossy:
        twin = _core.make_device_codec(spec)
        if twin is not None:
            return DeviceShards(spec, twin, device)
    return HostShards(spec)
