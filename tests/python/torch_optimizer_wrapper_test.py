"""Wrapped optimizers share groups and state with the optimizer inside, also after a state was loaded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from python.inproc_ranks import run_ranks
from torch import nn
from torch.optim.lr_scheduler import StepLR

# Torch thinks that the inner optimizer has not stepped.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")

Wrap = Callable[[torch.optim.Optimizer, gw.kv.KVStore], Any]


def distributed(inner: torch.optim.Optimizer, store: gw.kv.KVStore) -> Any:
    return gw.torch.DistributedOptimizer(inner, store=store)


def with_local_steps(inner: torch.optim.Optimizer, store: gw.kv.KVStore) -> Any:
    return gw.torch.LocalStepOptimizer(inner, store=store, sync_every=2)


either = pytest.mark.parametrize("wrap", [distributed, with_local_steps])


@pytest.fixture
def store() -> Iterator[gw.kv.KVStore]:
    store = gw.kv.create("local")
    yield store
    store.close()


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of two groups, of which the second has a learning rate that is a tensor."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.5)  # ranks are threads, and would draw from one generator
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": torch.tensor(0.2)}]
    return model, torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


@either
def test_an_early_scheduler_goes_on_after_a_load(wrap: Wrap, store: gw.kv.KVStore) -> None:
    model, inner = make()
    scheduler = StepLR(inner, 1)
    optimizer = wrap(inner, store)
    step(model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    for group in saved["param_groups"]:
        group["lr"] *= 10
    step(model, optimizer)
    optimizer.load_state_dict(saved)
    assert rates(optimizer) == pytest.approx([1.0, 2.0])
    scheduler.step()
    assert rates(optimizer) == pytest.approx([0.1, 0.2])
    momentum = optimizer.state[model[0].weight]["momentum_buffer"]
    assert torch.equal(momentum, saved["state"][0]["momentum_buffer"])
    assert inner.param_groups is optimizer.param_groups
    assert inner.state is optimizer.state
    optimizer.close()


@either
def test_ranks_keep_one_learning_rate_after_a_broadcast(wrap: Wrap) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model, inner = make()
        scheduler = StepLR(inner, 1)
        optimizer = wrap(inner, store)
        step(model, optimizer)
        gw.torch.broadcast_optimizer_state(optimizer, store=store)
        scheduler.step()
        assert rates(optimizer) == pytest.approx([0.01, 0.02])
        optimizer.close()

    run_ranks(2, body)


class FloatMomentum(torch.optim.Optimizer):
    """Keeps float32 for bfloat16 parameters, some of it deeper down; load_state_dict() is torch's, which casts that."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state |= {
                    "step": 0,
                    "deep": {"two": (torch.zeros(parameter.shape), torch.zeros(parameter.shape))},
                }
            state["step"] += 1
            momentum = state["deep"]["two"][0]
            momentum.mul_(0.9).add_(parameter.grad.float())
            parameter.copy_(parameter.float() - 0.1 * momentum)


def test_a_broadcast_state_keeps_the_roots_dtypes() -> None:
    """Ranks had bfloat16 where the root had float32, and their weights parted."""
    found: dict[int, torch.Tensor] = {}

    def body(store: gw.kv.KVStore) -> None:
        model, _ = make()
        model.bfloat16()
        optimizer = distributed(FloatMomentum(model.parameters()), store)
        for _ in range(1 + 2 * (store.rank == 1)):  # which is the root: its state is not what the other's is
            optimizer.zero_grad()
            with optimizer.no_sync():
                (0.3 * model(torch.ones(1, 3, dtype=torch.bfloat16))).sum().backward()
            FloatMomentum.step(optimizer)  # alone
        gw.torch.broadcast_optimizer_state(optimizer, root_rank=1, store=store)
        state = optimizer.state[model[0].weight]
        assert state["step"] == 3
        assert [each.dtype for each in state["deep"]["two"]] == [torch.float32, torch.float32]
        found[store.rank] = state["deep"]["two"][0]
        optimizer.close()

    run_ranks(2, body)
    assert found[0].any()
    assert torch.equal(found[0], found[1])


@either
def test_a_state_of_other_groups_changes_nothing(wrap: Wrap, store: gw.kv.KVStore) -> None:
    model, inner = make()
    optimizer = wrap(inner, store)
    step(model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"].pop()
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict(saved)
    assert rates(optimizer) == pytest.approx([0.1, 0.2])
    assert set(optimizer.state) == set(model.parameters())
    optimizer.close()


@either
def test_what_an_optimizer_has_may_be_set_again(wrap: Wrap, store: gw.kv.KVStore) -> None:
    model, inner = make()
    optimizer = wrap(inner, store)
    step(model, optimizer)
    optimizer.__setstate__(optimizer.__getstate__())
    assert rates(optimizer) == pytest.approx([0.1, 0.2])
    assert set(optimizer.state) == set(model.parameters())
    optimizer.close()
