"""torch.func on parameters whose sums are on their way (overlap_step). Ranks are threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import gradwire as gw
import pytest
import torch
from python.inproc_ranks import await_event, run_ranks
from python.overlapping_net import Net, batch, loss_of, make, under_way, wrap
from torch import func


def gradients(model: Net) -> Any:
    parts = dict(model.named_parameters())
    return func.grad_and_value(lambda own: func.functional_call(model, own, batch(9)).square().sum())(parts)


READERS: dict[str, Callable[[Net], Any]] = {
    "functional_call": lambda m: func.functional_call(m, dict(m.named_parameters()), batch(9)),
    "grad": gradients,
    "vjp": lambda m: func.vjp(torch.square, m.second.weight)[0],
    "jvp": lambda m: func.jvp(torch.square, (m.first.weight,), (torch.ones(6, 4),)),
    "jacobian": lambda m: func.jacrev(torch.square)(m.second.bias),
    "hessian": lambda m: func.hessian(lambda bias: bias.pow(3).sum())(m.first.bias),
    "vmap": lambda m: func.vmap(torch.square)(m.second.weight),
    "gradients of each example": lambda m: func.vmap(func.grad(lambda x: m(x).square().sum()))(batch(9)),
    "functionalize": lambda m: func.functionalize(lambda bias: bias.clone().add_(1.0))(m.second.bias),
    "stack_module_state": lambda m: func.stack_module_state([m.first, m.first])[0],
}


@pytest.mark.parametrize("name", READERS)
def test_what_a_transform_takes_is_updated_and_so_is_all_that_it_uses(name: str) -> None:
    """Rank 1 sends nothing before rank 0 is about to read, so every sum is still on its way. Rank 0 reads alone: torch
    counts levels of forward mode for all threads together.
    """
    reading = threading.Event()
    after: list[list[torch.Tensor]] = []

    def train(store: gw.kv.KVStore) -> None:
        model = make()
        optimizer = wrap(model, store)
        loss = loss_of(model, store.rank)
        if store.rank == 1:
            await_event(reading, f"rank 0's reading by {name}")
        loss.backward()
        optimizer.step()
        if store.rank == 0:
            assert len(under_way(model)) == 4
            reading.set()
            read = READERS[name](model)
            after.append([p.detach().clone() for p in model.parameters()])
            torch.testing.assert_close(read, READERS[name](model), rtol=0, atol=0)
        optimizer.synchronize()
        after.append([p.detach().clone() for p in model.parameters()])
        optimizer.close()

    run_ranks(2, train)
    before = [p.detach() for p in make().parameters()]
    assert len(after) == 3
    for parameters in after[1:]:
        torch.testing.assert_close(parameters, after[0], rtol=0, atol=0)
    assert not any(torch.equal(a, b) for a, b in zip(after[0], before, strict=True))


def test_between_backward_and_step_parameters_are_what_they_were() -> None:
    def train(store: gw.kv.KVStore) -> None:
        model = make()
        optimizer = wrap(model, store)
        loss_of(model, store.rank).backward()
        if store.rank == 0:
            read = func.vmap(torch.square)(model.second.weight)
            torch.testing.assert_close(read, make().second.weight.square(), rtol=0, atol=0)
        optimizer.step()
        optimizer.close()

    run_ranks(2, train)


def test_another_threads_compiler_is_no_hindrance(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compiler.is_compiling() is true in all threads while one of them compiles."""

    def train(store: gw.kv.KVStore) -> None:
        model = make()
        optimizer = wrap(model, store)
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model, store.rank).backward()
            optimizer.step()
        optimizer.synchronize()
        optimizer.close()

    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)
    assert torch.compiler.is_compiling()
    run_ranks(2, train)


def test_what_is_compiled_may_use_transforms() -> None:
    """Of parameters that are not on their way."""

    def train(store: gw.kv.KVStore) -> None:
        model = make()
        optimizer = wrap(model, store)
        loss_of(model, store.rank).backward()
        optimizer.step()
        optimizer.synchronize()
        if store.rank == 0:
            squares = torch.compile(
                lambda w: func.vmap(func.grad(lambda row: row.square().sum()))(w), backend="eager"
            )
            torch.testing.assert_close(squares(model.second.weight), 2 * model.second.weight)
        optimizer.close()

    with contextlib.ExitStack() as stack:
        stack.callback(torch._dynamo.reset)
        run_ranks(2, train)
