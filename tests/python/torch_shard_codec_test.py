"""Shards that are encoded on a device: the bits of those encoded on the CPU. The device's codec is replaced by one that
works in the CPU's memory, since CUDA's is tested where there is a GPU (experiments/gpu) and by its C++ tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from gradwire import _core, compress
from gradwire.gathered_sum import Met
from gradwire.torch.sharded import shard_codec
from gradwire.torch.sharded.shard_codec import DeviceShards, HostShards, ShardCodec

RANKS = 3
CODECS = ["fp16", "int8", "nf4", "topk:ratio=0.1", "2bit:threshold=0.5", "2bit", "1bit", "qsgd"]


class NoStream:
    """In place of a CUDA stream: work is done at once."""

    def __init__(self, device: torch.device) -> None:
        del device
        self.handle = 7

    def after_current(self) -> Callable[[], object]:
        return lambda: None

    @contextmanager
    def current(self) -> Iterator[None]:
        yield

    def synchronize(self) -> None: ...


class Twin:
    """As _core.DeviceCodec, with arrays on the CPU."""

    def __init__(self, spec: str) -> None:
        self._codec = compress.make(spec)

    def scratch_bytes(self, elements: int) -> int:
        return 4 * elements

    def sum_bytes(self, elements: int, ways: int) -> int:
        payload = self._codec.encode(np.zeros(elements, np.float32))
        return len(self._codec.encode_reply([payload] * ways, elements, reply="fp32"))

    def encode(
        self,
        grad: Any,
        *,
        residual: Any,
        scales: Any,
        out: Any,
        report: Any,
        scratch: Any,
        stream: int,
        **place: int,
    ) -> int:
        assert len(scratch) >= self.scratch_bytes(len(grad))
        assert stream == 7
        assert not report.any()
        agreed = None if scales is None else scales.numpy()
        made, report[0] = self._codec.encode_flagged(
            grad.numpy(), residual=residual.numpy(), scales=agreed, **place
        )
        out.numpy()[: len(made)] = made
        return len(made)

    def decode_sum(self, received: Any, payloads: Any, *, out: Any, report: Any, stream: int) -> None:
        self._check(received, payloads)
        out.numpy()[:] = self._codec.decode_sum(list(received), len(out))

    def encode_sum(
        self, received: Any, payloads: Any, elements: int, *, out: Any, report: Any, scratch: Any, stream: int
    ) -> int:
        self._check(received, payloads)
        made = self._codec.encode_reply(list(received), elements, reply="fp32")
        out.numpy()[: len(made)] = made
        return len(made)

    def read_sum(
        self, received: Any, reply: Any, ways: int, *, out: Any, scales: Any, report: Any, stream: int
    ) -> None:
        head = len(reply) - 4 * len(out)
        assert np.array_equal(received[:head], reply[:head].numpy())
        assert len(received) == len(reply)
        out.numpy()[:], scales.numpy()[:] = self._codec.decode_reply(
            reply.numpy(), ways, len(out), reply="fp32"
        )

    def _check(self, received: Any, payloads: Any) -> None:
        assert payloads.shape[1] % 8 == 0
        for one, row in zip(received, payloads.numpy(), strict=True):
            assert np.array_equal(one, row[: len(one)])


@pytest.fixture(autouse=True)
def no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_codec, "SideStream", NoStream)


class Rounds:
    """What one rank encodes for three owners, of which it is one."""

    def __init__(self, codec: ShardCodec, elements: int) -> None:
        self.codec = codec
        self.residuals = list(torch.zeros(RANKS, elements))
        self.scales: list[torch.Tensor | None] = [None] * RANKS
        self.step = 0

    def run(self, shards: torch.Tensor) -> tuple[list[Any], Met, torch.Tensor]:
        given, wait = self.codec.ready(shards)
        with self.codec.at_work():
            wait()
            payloads, met = self.codec.encode(
                given, self.residuals, self.scales, first_key=0, rank=1, step=self.step
            )
            total, scales = self.codec.total(payloads, shards.shape[1])
        self.scales = [scales] * RANKS
        self.step += 1
        return payloads, met, total


@pytest.mark.parametrize("spec", CODECS)
@pytest.mark.parametrize("elements", [1, 7, 4099, 70_000])
def test_rounds_have_the_bits_of_the_host(spec: str, elements: int) -> None:
    generator = torch.Generator().manual_seed(elements)
    there = Rounds(DeviceShards(spec, Twin(spec), torch.device("cpu")), elements)
    here = Rounds(HostShards(spec), elements)
    for _ in range(4):
        shards = torch.randn(RANKS, elements, generator=generator)
        payloads, met, total = there.run(shards)
        expected_payloads, expected_met, expected = here.run(shards)
        assert met == expected_met == Met.NOTHING
        for one, other in zip(payloads, expected_payloads, strict=True):
            np.testing.assert_array_equal(one, other)
        assert torch.equal(total, expected)
        for residual, expected_residual in zip(there.residuals, here.residuals, strict=True):
            assert torch.equal(residual, expected_residual)


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf, 1e6])
@pytest.mark.parametrize("spec", ["fp16", "int8", "2bit", "2bit:threshold=0.5,nonfinite=mxnet"])
def test_what_was_met_is_what_the_host_meets(spec: str, value: float) -> None:
    shards = torch.zeros(RANKS, 100)
    shards[1, 50] = value
    met = Rounds(DeviceShards(spec, Twin(spec), torch.device("cpu")), 100).run(shards)[1]
    assert met == Rounds(HostShards(spec), 100).run(shards)[1]
    assert met == Met.ZEROS or value != 0


def test_gradients_on_the_cpu_are_encoded_there() -> None:
    assert isinstance(shard_codec.shard_codec("int8", torch.device("cpu")), HostShards)


def test_a_codec_without_a_twin_or_a_machine_without_a_gpu_has_none() -> None:
    assert _core.make_device_codec("randomk") is None
    if not torch.cuda.is_available():
        assert _core.make_device_codec("int8") is None
    with pytest.raises(ValueError, match="unknown codec"):
        _core.make_device_codec("int9")
