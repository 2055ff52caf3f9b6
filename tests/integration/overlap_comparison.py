"""Trains twice, with overlap_step and without, and requires the same bits: for the cases of torch_overlap_*cases.py."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gradwire as gw
import gradwire.torch
import torch
from torch import nn
from torch_programs import Net, images

Wrap = Callable[..., Any]
Train = Callable[[Wrap], nn.Module]
Loss = Callable[[int], torch.Tensor]


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def require_equal(ours: Any, theirs: Any, where: str) -> None:
    """The same keys and the same bits."""
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(
            ours, theirs, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{where}: {text}"
        )
    elif isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), (where, ours, theirs)
        for key in theirs:
            require_equal(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs), where
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            require_equal(a, b, f"{where}.{index}")
    else:
        assert ours == theirs, where


def require_the_plain_loop(store: gw.kv.KVStore, train: Train, **options: Any) -> None:
    """Runs train(wrap) both ways; wrap(model, make_optimizer) is DistributedOptimizer."""
    results = []
    for overlap_step in (False, True):
        made: list[Any] = []

        def wrap(
            model: nn.Module,
            make: Callable[..., Any] = momentum,
            overlap_step: bool = overlap_step,
            made: list[Any] = made,
            **more: Any,
        ) -> Any:
            inner = make(model.parameters())
            made.append(
                gw.torch.DistributedOptimizer(
                    inner,
                    model.named_parameters(),
                    store=store,
                    overlap_step=overlap_step,
                    **{"compression": "none", **options, **more},
                )
            )
            return made[-1]

        torch.manual_seed(0)
        model = train(wrap)
        # Read through torch's own functions, with whatever is under way still to come.
        results.append((copy.deepcopy(model.state_dict()), copy.deepcopy(made[-1].state_dict())))
        made[-1].close()
    require_equal(results[1][0], results[0][0], "weights")
    require_equal(results[1][1], results[0][1], "optimizer")


def numbers(store: gw.kv.KVStore, step: int, *shape: int) -> torch.Tensor:
    """Inputs of a step, each rank's own."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(10 * step + store.rank))


def loss_of(model: nn.Module, store: gw.kv.KVStore, step: int) -> torch.Tensor:
    return model(images(10 * step + store.rank)).square().mean()


def take_steps(
    optimizer: Any, loss: Loss, steps: int = 4, after: Callable[[int], None] = lambda step: None
) -> None:
    """The loop itself. after: called at the end of each step, when its sums may still be under way."""
    for step in range(steps):
        optimizer.zero_grad()
        loss(step).backward()
        optimizer.step()
        after(step)


def train_net(
    store: gw.kv.KVStore, wrap: Wrap, make: Callable[..., Any] = momentum, **options: Any
) -> nn.Module:
    """Learning rates change at once after step(), when sums are still under way."""
    model = Net()
    optimizer = wrap(model, make, **options)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    for step in range(5):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss_of(model, store, step).backward()
        optimizer.step()
        scheduler.step()
    return model
