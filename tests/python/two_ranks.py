"""Two ranks, threads of this process, each beside one process that has both ranks' batches.

What one process does is written out here: the sum of the ranks' gradients, halved, and torch's own optimizer. A sum of
two float32 has one value, so weights are compared to the bit.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import gradwire as gw
import gradwire.torch
import torch
from python.inproc_ranks import run_ranks
from torch import nn

Body = Callable[[gw.kv.KVStore], None]
Loss = Callable[[nn.Module, int, int], torch.Tensor]
Model = TypeVar("Model", bound=nn.Module)
MakeOptimizer = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]

_seeding = threading.Lock()


def sgd(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def wrapped(model: nn.Module, store: gw.kv.KVStore, make: MakeOptimizer = sgd, **options: Any) -> Any:
    """A DistributedOptimizer of all of a model's parameters."""
    inner = make(list(model.parameters()))
    return gw.torch.DistributedOptimizer(inner, model.named_parameters(), store=store, **options)


def seeded(make: Callable[[], Model]) -> Model:
    """Makes a model, of the same random weights each time. torch has one random generator for all threads."""
    with _seeding:
        torch.manual_seed(1)
        return make()


def batch(rank: int, step: int, *shape: int) -> torch.Tensor:
    """A rank's inputs in a step."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 * step + rank))


def require_equal(ours: nn.Module, theirs: nn.Module) -> None:
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, msg=lambda text, n=name: f"{n}: {text}")


class OneProcess:
    """A copy of a model that is trained on both ranks' batches, without gradwire."""

    def __init__(self, model: nn.Module, loss: Loss, make: MakeOptimizer = sgd) -> None:
        self.model = copy.deepcopy(model)
        self.optimizer = make(list(self.model.parameters()))
        self._loss = loss

    def step(self, number: int, ranks: Iterable[int] = (0, 1)) -> None:
        """Takes a step on the mean of two ranks, of which those that are given have gradients."""
        self.model.zero_grad()
        for rank in ranks:
            loss = self._loss(self.model, rank, number)
            loss.backward()
        for parameter in self.model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
            else:
                parameter.grad *= 0.5
        self.optimizer.step()


def run_two(body: Body, **options: Any) -> None:
    """Runs body(store) as both ranks."""
    run_ranks(2, body, **options)


def warnings_of_two(body: Body) -> list[str]:
    """Runs body(store) as both ranks, and returns what they were warned of. Threads share Python's list of warnings, so
    neither can look by itself.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_two(body)
    return [str(warning.message) for warning in caught]
