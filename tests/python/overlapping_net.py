"""A small network that trains with overlap_step: what the tests of torch_overlap*_test.py train."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import gradwire as gw
import gradwire.torch
import torch
from gradwire.torch.overlapping.parameter_guard import keeper_of
from torch import nn


@contextlib.contextmanager
def compressing_store() -> Iterator[gw.kv.KVStore]:
    """A local store that compresses, so that hooks are at work."""
    store = gw.kv.create("local")
    store.set_gradient_compression("fp16")
    yield store
    store.close()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


with torch.random.fork_rng():
    torch.manual_seed(0)
    FRESH = Net()  # made once: ranks are threads, and would draw from one generator


def make() -> Net:
    return copy.deepcopy(FRESH)


def wrap(model: nn.Module, store: gw.kv.KVStore, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return gw.torch.DistributedOptimizer(
        optimizer, model.named_parameters(), store=store, overlap_step=True, **options
    )


def batch(seed: int) -> torch.Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))


def loss_of(model: nn.Module, seed: int) -> torch.Tensor:
    return model(batch(seed)).square().mean()


def under_way(model: nn.Module) -> set[str]:
    """Names of the parameters whose sums have not been taken in."""
    return {name for name, p in model.named_parameters() if keeper_of(p) is not None}
