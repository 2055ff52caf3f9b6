"""Optimizers that call their closure themselves. Ranks are threads."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from python.inproc_ranks import run_ranks
from torch import nn

with torch.random.fork_rng():
    torch.manual_seed(0)
    FRESH = nn.Linear(4, 2)


class Sharpness(torch.optim.Optimizer):
    """SAM with a plain step: to where the loss is highest nearby, and from there back and down.

    Source: Foret et al., Sharpness-Aware Minimization, 2021, algorithm 1.
    """

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1, "rho": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is not None, "a closure is needed"
        closure = torch.enable_grad()(closure)
        closure()
        members = [(p, group) for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p, _ in members]).norm()
        away = [p.grad * (group["rho"] / norm) for p, group in members]
        for (p, _), distance in zip(members, away, strict=True):
            p.add_(distance)
        loss = closure()
        for (p, group), distance in zip(members, away, strict=True):
            p.sub_(distance).sub_(p.grad, alpha=group["lr"])
        return loss


class Backtracking(torch.optim.Optimizer):
    """Halves its step until the loss falls: what it does depends on the loss alone."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 8.0})
        self.calls = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        closure = torch.enable_grad()(closure)
        members = [p for group in self.param_groups for p in group["params"]]
        before, loss = [p.clone() for p in members], closure()
        down = [p.grad.clone() for p in members]
        rate = self.param_groups[0]["lr"]
        while True:
            for p, was, gradient in zip(members, before, down, strict=True):
                p.copy_(was).sub_(gradient, alpha=rate)
            self.calls += 1
            if closure() < loss:
                return loss
            rate /= 2


def batch(rank: int) -> torch.Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(rank)) * (1 + rank)


def closure_of(model: nn.Module, optimizer: Any, ranks: list[int]) -> Callable[[], torch.Tensor]:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.stack([model(batch(rank)).square().mean() for rank in ranks]).mean()
        loss.backward()
        return loss

    return closure


def wrap(inner: torch.optim.Optimizer, store: gw.kv.KVStore, **options: Any) -> Any:
    return gw.torch.DistributedOptimizer(inner, store=store, **options)


@pytest.mark.parametrize("make", [Sharpness, Backtracking])
@pytest.mark.parametrize("options", [{}, {"backward_passes_per_step": 2}], ids=["every pass", "too few"])
def test_its_steps_are_those_of_one_process_with_all_batches(make: Any, options: dict[str, Any]) -> None:
    plain = copy.deepcopy(FRESH)
    oracle = make(plain.parameters())
    losses = [oracle.step(closure_of(plain, oracle, [0, 1])).item() for _ in range(4)]

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(make(model.parameters()), store, **options)
        closure = closure_of(model, optimizer, [store.rank])
        assert [optimizer.step(closure).item() for _ in range(4)] == pytest.approx(losses, rel=1e-5)
        torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))
        assert getattr(optimizer, "calls", 0) == getattr(oracle, "calls", 0)
        optimizer.close()

    run_ranks(2, body)


def test_gradients_are_clipped_after_every_call() -> None:
    seen: list[float] = []

    class Looks(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for _ in range(2):
                closure()
                own = [p.grad.norm() for group in self.param_groups for p in group["params"]]
                seen.append(float(torch.stack(own).norm()))
            return None

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(Looks(model.parameters(), lr=0.1), store, max_grad_norm=0.01)
        optimizer.step(closure_of(model, optimizer, [store.rank]))
        optimizer.close()

    run_ranks(2, body)
    assert seen == pytest.approx([0.01] * 4, rel=1e-3)


def test_what_it_returns_may_be_a_number_or_nothing_but_no_tuple() -> None:
    class Calls(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return closure()

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(Calls(model.parameters(), lr=0.1), store)
        assert optimizer.step(lambda: 1 + store.rank) == 1.5
        assert optimizer.step(lambda: None) is None
        with pytest.raises(TypeError, match=r"returned a tuple, expected the loss"):
            optimizer.step(lambda: (1.0, 2.0))
        optimizer.close()

    run_ranks(2, body)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            {"on_nonfinite": "skip_step"},
            "on_nonfinite='skip_step' cannot veto a step of Own.*on_nonfinite='warn'",
        ),
        ({"grad_scaler": torch.amp.GradScaler("cpu")}, "grad_scaler cannot veto a step of Own"),
        ({"momentum_correction": True}, r"step\(closure\) of Own.*leave momentum_correction out"),
    ],
)
def test_what_its_steps_cannot_go_with_is_refused(options: dict[str, Any], named: str) -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(Own(model.parameters(), lr=0.1, momentum=0.9), store, **options)
        closure = closure_of(model, optimizer, [store.rank])
        with pytest.raises(ValueError, match=named):
            optimizer.step(closure)
        if "grad_scaler" not in options:  # without a closure all is as ever
            closure()
            optimizer.step()
        optimizer.close()

    run_ranks(2, body)


def test_who_was_handed_closures_cannot_join() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(Sharpness(model.parameters()), store)
        optimizer.step(closure_of(model, optimizer, [store.rank]))
        with pytest.raises(ValueError, match="Sharpness, whose closures agree on the loss"):
            optimizer.join()
        optimizer.close()

    run_ranks(2, body)


def test_a_class_that_only_adds_to_torchs_is_stepped_as_that_is() -> None:
    """Its closure is called once, before the step, which can so be vetoed."""

    class Named(torch.optim.SGD):
        name = "mine"

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(Named(model.parameters(), lr=0.1), store, on_nonfinite="skip_step")

        def closure() -> torch.Tensor:
            loss = model(batch(store.rank)).square().mean() * float("nan")
            loss.backward()
            return loss

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            assert optimizer.step(closure).isnan()
        assert torch.equal(model.weight, FRESH.weight)
        optimizer.close()

    run_ranks(2, body)
