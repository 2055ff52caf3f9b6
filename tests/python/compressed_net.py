"""A small network whose gradients a codec may change: what torch_options_test.py and torch_warm_up_test.py train."""

from __future__ import annotations

import copy
from typing import Any

import gradwire as gw
import gradwire.torch
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(self.words(x).mean(1)))))


def make(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def loss_of(model: nn.Module, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x, target = torch.randint(30, (6, 5), generator=generator), torch.randint(4, (6,), generator=generator)
    return nn.functional.cross_entropy(model(x), target)


def wrap(model: nn.Module, store: gw.kv.KVStore, compression: str, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return gw.torch.DistributedOptimizer(optimizer, model.named_parameters(), compression, store, **options)


def exact_gradients(model: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    alone = copy.deepcopy(model)
    alone.zero_grad()
    loss_of(alone, seed).backward()
    return {name: p.grad for name, p in alone.named_parameters()}


def changed_by_the_codec(model: nn.Module, seed: int) -> set[str]:
    """Names of parameters whose gradient is not what autograd computed, after one more backward()."""
    exact = exact_gradients(model, seed)
    model.zero_grad()
    loss_of(model, seed).backward()
    return {name for name, p in model.named_parameters() if not torch.equal(p.grad, exact[name])}
