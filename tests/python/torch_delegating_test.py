"""Optimizers that hand their step on and never ran Optimizer.__init__(), and schedulers made before the wrapping."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from python.inproc_ranks import run_ranks
from python.two_ranks import OneProcess, batch, require_equal, run_two, seeded, wrapped
from torch import nn


class Handing(torch.optim.Optimizer):
    """As accelerate's AcceleratedOptimizer."""

    def __init__(self, inside: torch.optim.Optimizer) -> None:
        self.inside = inside
        self.steps = 0

    param_groups = property(lambda self: self.inside.param_groups)  # type: ignore[assignment]
    state = property(lambda self: self.inside.state)  # type: ignore[assignment]
    defaults = property(lambda self: self.inside.defaults)  # type: ignore[assignment]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        self.steps += 1
        return self.inside.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inside.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.inside.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.inside.load_state_dict(state_dict)


def handing(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return Handing(torch.optim.Adam(parameters, lr=0.01))


def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return model(batch(rank, step, 5, 4)).square().sum()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"overlap_step": True},
    {"max_grad_norm": 1e9},
    {"on_nonfinite": "skip_step"},
]


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_optimizer_that_hands_its_step_on(options: dict[str, Any], set_to_none: bool) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
        one = OneProcess(model, loss, handing)
        optimizer = wrapped(model, store, handing, **options)
        for step in range(4):
            optimizer.zero_grad(set_to_none)
            loss(model, store.rank, step).backward()
            optimizer.step()
            one.step(step)
            if step == 1:
                optimizer.load_state_dict(optimizer.state_dict())
        optimizer.synchronize()
        require_equal(model, one.model)
        assert optimizer.steps == 4
        assert isinstance(optimizer, Handing)
        head = nn.Linear(2, 2)
        optimizer.add_param_group({"params": list(head.parameters())})
        optimizer.zero_grad()
        (head.weight * (store.rank + 1)).sum().backward()
        optimizer.step()
        optimizer.synchronize()
        assert torch.equal(head.weight.grad, torch.full((2, 2), 1.5))
        optimizer.close()

    run_two(body)


def test_local_steps_of_one() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = seeded(lambda: nn.Linear(4, 2))
        inner = handing(list(model.parameters()))
        optimizer = gw.torch.LocalStepOptimizer(
            inner, model.named_parameters(), "none", store=store, sync_every=2
        )
        for step in range(4):
            optimizer.zero_grad()
            loss(model, store.rank, step).backward()
            optimizer.step()
        blob = model.weight.detach().numpy().tobytes()
        assert len(set(store.engine.all_gather("weights", blob))) == 1
        optimizer.close()

    run_two(body)


@pytest.mark.parametrize("kind", ["distributed", "overlapping", "local steps", "twice"])
def test_a_scheduler_made_before_the_wrapping_warns_of_nothing(kind: str) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = nn.Linear(2, 2)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
        named = list(model.named_parameters())
        if kind == "local steps":
            optimizer = gw.torch.LocalStepOptimizer(inner, named, "none", store, sync_every=2)
        else:
            overlaps = kind == "overlapping"
            optimizer = gw.torch.DistributedOptimizer(inner, named, "none", store, overlap_step=overlaps)
        if kind == "twice":
            optimizer = gw.torch.DistributedOptimizer(optimizer, named, "none", store)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.025
        optimizer.close()

    run_ranks(1, body)


def test_a_scheduler_that_steps_first_is_still_warned_of() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = nn.Linear(2, 2)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1)
        gw.torch.DistributedOptimizer(inner, model.named_parameters(), "none", store)
        with pytest.warns(UserWarning, match=r"before `optimizer\.step\(\)`"):
            scheduler.step()

    run_ranks(1, body)
