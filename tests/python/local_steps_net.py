"""A small network that trains with local steps: what the tests of torch_local_steps*_test.py train."""

from __future__ import annotations

from typing import Any

import gradwire as gw
import gradwire.torch
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 6)
        self.third = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


with torch.random.fork_rng():
    torch.manual_seed(0)
    FRESH = Net()  # made once: ranks are threads, and would draw from one generator


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x, y = torch.randn(5, 4, generator=generator), torch.randn(5, 3, generator=generator)
    return (model(x) - y).square().mean()


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.02)


def wrap(model: nn.Module, store: gw.kv.KVStore, **options: Any) -> Any:
    return gw.torch.LocalStepOptimizer(
        adamw(model.parameters()), model.named_parameters(), store=store, **options
    )


def take_steps(model: nn.Module, optimizer: Any, rank: int, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()


def require_equal(ours: nn.Module, theirs: nn.Module) -> None:
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, msg=lambda text, n=name: f"{n}: {text}")
