"""Wrapped optimizers share groups and state with the optimizer inside, also after a state was loaded."""

from __future__ import annotations

import copy
import inspect
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


# ---- classes whose methods have other arguments than torch's -----------------------------------------------------


class Fused(torch.optim.SGD):
    """As fused optimizers outside torch, which GradScaler hands itself; with an argument of its own."""

    _step_supports_amp_scaling = True

    @torch.no_grad()
    def step(self, closure: Any = None, grad_scaler: Any = None, *, times: int = 1) -> Any:  # type: ignore[override]
        scale = 1.0
        if grad_scaler is not None:
            found = grad_scaler._check_inf_per_device(self)
            assert not any(map(bool, found.values()))
            scale = grad_scaler.get_scale()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"] * times / scale)

    def zero_grad(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def fused_weights(store: gw.kv.KVStore, wrap: Wrap | None, take: Callable[[Any], object]) -> torch.Tensor:
    """The weights after one step, taken by take(), of a Fused optimizer that wrap() has wrapped, or none has."""
    model = make()[0]
    optimizer: Any = Fused(model.parameters(), lr=0.1)
    if wrap is not None:
        optimizer = wrap(optimizer, store)
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    take(optimizer)
    if wrap is not None:
        optimizer.close()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@either
def test_a_step_and_zero_grad_take_what_the_class_takes(wrap: Wrap, store: gw.kv.KVStore) -> None:
    def take(optimizer: Any) -> None:
        optimizer.step(times=3)

    assert torch.equal(fused_weights(store, wrap, take), fused_weights(store, None, take))


@either
def test_signatures_are_those_of_the_class(wrap: Wrap, store: gw.kv.KVStore) -> None:
    def compare(optimizer: Any) -> None:
        for name in ("step", "zero_grad"):
            own, given = getattr(optimizer, name), getattr(Fused, name)
            assert list(inspect.signature(own).parameters) == list(inspect.signature(given).parameters)[1:]
        assert type(optimizer).step.hooked

    fused_weights(store, wrap, compare)


def scaled(inner: torch.optim.Optimizer, store: gw.kv.KVStore) -> tuple[Any, torch.amp.GradScaler]:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    return gw.torch.DistributedOptimizer(
        inner, store=store, compression="none", codecs={"*": "fp16"}, grad_scaler=scaler
    ), scaler


@pytest.mark.filterwarnings("ignore:GradScaler is going to stop")
def test_a_scaler_is_handed_to_a_class_that_takes_out_its_scale(store: gw.kv.KVStore) -> None:
    model = make()[0]
    optimizer, scaler = scaled(Fused(model.parameters(), lr=0.1), store)
    expected = [p.detach().clone() for p in model.parameters()]
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(1, 3)).sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        factor = float("inf") if step == 1 else 1.0  # that step is skipped
        scaler.scale(loss * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        if step != 1:
            expected = [p - 0.1 * g for p, g in zip(expected, gradients, strict=True)]
        for parameter, value in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.detach(), value, rtol=2e-3, atol=1e-3)
    assert scaler.get_scale() == 512.0
    optimizer.close()


def test_arguments_that_a_step_cannot_use_are_refused(store: gw.kv.KVStore) -> None:
    def with_overlap(inner: torch.optim.Optimizer, store: gw.kv.KVStore) -> Any:
        return gw.torch.DistributedOptimizer(inner, store=store, overlap_step=True)

    def with_clipping(inner: torch.optim.Optimizer, store: gw.kv.KVStore) -> Any:
        return gw.torch.DistributedOptimizer(inner, store=store, max_grad_norm=1.0)

    with pytest.raises(ValueError, match=r"step\(times=\.\.\.\) was called with overlap_step"):
        fused_weights(store, with_overlap, lambda optimizer: optimizer.step(times=3))
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(ValueError, match=r"max_grad_norm .* step\(grad_scaler=\.\.\.\)"):
        fused_weights(store, with_clipping, lambda optimizer: optimizer.step(grad_scaler=scaler))
