"""Codes of weights, beside the codecs int8 and int4: the same scales and codes, bit for bit."""

from __future__ import annotations

import gradwire as gw
import numpy as np
import pytest
import torch
from gradwire.torch.sharded.weight_codes import WeightCodes

SIZES = (1, 2, 255, 256, 257, 1000)


def matrices(seed: int = 0) -> list[torch.Tensor]:
    """Of any scale, with zeros, denormals and the largest floats."""
    generator = torch.Generator().manual_seed(seed)
    found = [
        torch.randn(size, generator=generator) * 10.0 ** (3 * place - 7) for place, size in enumerate(SIZES)
    ]
    odd = torch.tensor([0.0, -0.0, 1e-45, -1e-40, 1.17549435e-38, 2.5, -3.5])
    halves = torch.arange(-127, 128) / 2  # ties, where the scale is 0.5
    return [*found, odd, halves, torch.full((300,), 3.4028234e38), torch.zeros(40)]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("block", [32, 256])
def test_values_are_the_codecs(bits: int, block: int) -> None:
    codes, codec = WeightCodes(bits, block), gw.compress.make(f"int{bits}", block=block)
    given = matrices()
    sizes = [each.numel() for each in given]
    payload = codes.encode(given)
    assert payload.shape == (codes.payload_bytes(sizes),)
    for values, matrix in zip(codes.decode(payload.unsqueeze(0), sizes), given, strict=True):
        theirs = codec.decode(codec.encode(matrix.numpy()), matrix.numel())
        np.testing.assert_array_equal(values[0].numpy(), theirs)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_payload_of_whole_blocks_is_the_codecs(bits: int) -> None:
    matrix = torch.randn(5 * 64, generator=torch.Generator().manual_seed(1))
    payload = WeightCodes(bits, 64).encode([matrix])
    np.testing.assert_array_equal(
        payload.numpy(), gw.compress.make(f"int{bits}", block=64).encode(matrix.numpy())
    )


def test_several_ranks() -> None:
    codes = WeightCodes(4, 32)
    of_ranks = [matrices(seed) for seed in range(3)]
    sizes = [each.numel() for each in of_ranks[0]]
    together = codes.decode(torch.stack([codes.encode(own) for own in of_ranks]), sizes)
    for rank, own in enumerate(of_ranks):
        alone = codes.decode(codes.encode(own).unsqueeze(0), sizes)
        for several, one in zip(together, alone, strict=True):
            assert torch.equal(several[rank], one[0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_spoils_its_block(bad: float) -> None:
    matrix = torch.ones(96)
    matrix[40] = bad
    codes = WeightCodes(8, 32)
    (values,) = codes.decode(codes.encode([matrix]).unsqueeze(0), [96])
    assert bool(values[0, 32:64].isnan().all())
    assert torch.equal(values[0, :32], torch.ones(32))
    assert torch.equal(values[0, 64:], torch.ones(32))


def test_half_precision() -> None:
    matrix = torch.randn(100, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    codes = WeightCodes(8, 32)
    (values,) = codes.decode(codes.encode([matrix]).unsqueeze(0), [100])
    (wide,) = codes.decode(codes.encode([matrix.float()]).unsqueeze(0), [100])
    assert torch.equal(values, wide)
