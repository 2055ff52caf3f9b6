"""Where each parameter's elements are in what FSDP2 reduce-scatters: cut as torch cuts, and whole again."""

from __future__ import annotations

import importlib
import math
import sys

import gradwire.torch
import pytest
import torch
from gradwire.torch.sharded.layout import Layout, Piece, read_layout
from torch.torch_version import TorchVersion

SHAPES = ((7, 3), (1,), (5,), (8, 2, 2), (2, 9))


def layout(ranks: int) -> Layout:
    return Layout(ranks, tuple(Piece(f"p{i}", shape, 0) for i, shape in enumerate(SHAPES)))


def parameters() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {f"p{i}": torch.randn(shape, generator=generator) for i, shape in enumerate(SHAPES)}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 9])
def test_shards_are_torchs(ranks: int) -> None:
    """torch.ops.fsdp.chunk_cat() is what makes its input."""
    values = parameters()
    here = layout(ranks)
    theirs = torch.empty(ranks, here.elements)
    torch.ops.fsdp.chunk_cat(list(values.values()), dim=0, num_chunks=ranks, out=theirs)
    ours = here.join(values)
    assert torch.equal(ours, theirs)
    for name, value in here.split(ours).items():
        assert torch.equal(value, values[name])


def test_shards_along_another_dimension() -> None:
    """Of which torch takes even ones only: chunks along it, each flattened."""
    whole = torch.arange(24.0).view(3, 8)
    here = Layout(4, (Piece("w", (3, 8), 1), Piece("b", (5,), 0)))
    shards = here.join({"w": whole})
    for rank, chunk in enumerate(whole.chunk(4, dim=1)):
        assert torch.equal(shards[rank, :6], chunk.reshape(-1))
        assert not shards[rank, 6:].any()
    assert torch.equal(here.split(shards)["w"], whole)


def test_a_layout_is_read_as_it_was_written() -> None:
    here = Layout(3, (*layout(3).pieces, Piece("w", (3, 6), 1)))
    assert read_layout(here.written()) == here
    assert here.elements == sum(math.prod((-(-s[0] // 3), *s[1:])) for s in SHAPES) + 6


def test_an_older_torch_is_refused_with_the_release_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.8.1+cpu"))
    for name in [name for name in sys.modules if name.startswith("gradwire.torch.sharded")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"need PyTorch 2\.9 or later, and 2\.8\.1\+cpu is installed"):
        importlib.import_module("gradwire.torch.sharded.fsdp")
    with pytest.raises(ImportError, match="or use DistributedDataParallel"):
        _ = gradwire.torch.compress_all_gather
