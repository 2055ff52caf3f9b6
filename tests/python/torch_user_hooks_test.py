"""Hooks of the user's on parameters: their gradients are sent after those have run, whichever came first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from python.two_ranks import run_two, warnings_of_two


def replace(parameter: torch.Tensor) -> None:
    parameter.grad = parameter.grad * 2


def in_place(parameter: torch.Tensor) -> None:
    parameter.grad.mul_(2)


def optimizer_of(weights: list[torch.nn.Parameter], store: gw.kv.KVStore, **options: Any) -> Any:
    named = [(f"w{i}", w) for i, w in enumerate(weights)]
    return gw.torch.DistributedOptimizer(
        torch.optim.SGD(weights, lr=1.0), named, "none", store=store, **options
    )


@pytest.mark.parametrize("options", [{}, {"overlap_step": True}], ids=str)
@pytest.mark.parametrize("hook", [replace, in_place])
@pytest.mark.parametrize("when", ["before", "after", "between"])
def test_a_hook_changes_what_is_sent(
    hook: Callable[[torch.Tensor], None], when: str, options: dict[str, Any]
) -> None:
    def body(store: gw.kv.KVStore) -> None:
        weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
        if when == "before":
            weights[0].register_post_accumulate_grad_hook(hook)
        optimizer = optimizer_of(weights, store, **options)
        if when == "after":
            weights[0].register_post_accumulate_grad_hook(hook)
        for step in range(4):
            if when == "between" and step == 1:
                weights[0].register_post_accumulate_grad_hook(hook)
            optimizer.zero_grad()
            ((weights[0] + weights[1]) * (store.rank + 1)).sum().backward()
            optimizer.step()
        optimizer.synchronize()
        doubled = 3 if when == "between" else 4
        assert weights[0].tolist() == [-1.5 * (4 + doubled)] * 2
        assert weights[1].tolist() == [-1.5 * 4] * 2
        optimizer.close()

    assert not warnings_of_two(body)


def test_a_hook_of_one_rank_alone() -> None:
    def body(store: gw.kv.KVStore) -> None:
        weights = [torch.nn.Parameter(torch.zeros(2))]
        optimizer = optimizer_of(weights, store)
        if store.rank == 1:
            weights[0].register_post_accumulate_grad_hook(in_place)
        for _ in range(3):
            optimizer.zero_grad()
            (weights[0] * (store.rank + 1)).sum().backward()
            optimizer.step()
        assert weights[0].tolist() == [-3 * (1 + 4) / 2] * 2
        optimizer.close()

    run_two(body)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_that_takes_the_gradient_away_is_named(when: str) -> None:
    """An optimizer that steps in backward(): on this rank's own gradient, so ranks part."""

    def body(store: gw.kv.KVStore) -> None:
        weight = torch.nn.Parameter(torch.zeros(2))
        own = torch.optim.SGD([weight], lr=1.0)

        def step(_: torch.Tensor) -> None:
            own.step()
            own.zero_grad()

        if when == "before":
            weight.register_post_accumulate_grad_hook(step)
        optimizer = optimizer_of([weight], store)
        if when == "after":
            weight.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            optimizer.zero_grad()
            (weight * (store.rank + 1)).sum().backward()
            optimizer.step()
        assert weight.tolist() == [-3.0 * (store.rank + 1)] * 2  # in either order
        optimizer.close()

    assert any("a hook on 'w0' has taken its gradient away" in text for text in warnings_of_two(body))


@pytest.mark.parametrize("how", ["replace", "in place"])
def test_what_changes_a_gradient_after_it_was_sent_is_said(how: str) -> None:
    """A hook on autograd's node runs after all hooks of the parameter."""

    def body(store: gw.kv.KVStore) -> None:
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = optimizer_of([weight], store)
        node = weight.view_as(weight).grad_fn.next_functions[0][0]

        def change(*_: Any) -> None:
            if how == "replace":
                weight.grad = weight.grad * 2
            else:
                weight.grad.mul_(2)

        node.register_hook(change)
        weight.sum().backward()
        optimizer.step()
        optimizer.close()

    assert any(
        "gradient of 'w0' was changed during backward() after it" in text for text in warnings_of_two(body)
    )


def test_hooks_that_are_removed_leave_ours() -> None:
    def body(store: gw.kv.KVStore) -> None:
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = optimizer_of([weight], store)
        handle = weight.register_post_accumulate_grad_hook(in_place)
        for step in range(4):
            if step == 2:
                handle.remove()
            optimizer.zero_grad()
            (weight * (store.rank + 1)).sum().backward()
            optimizer.step()
        assert weight.tolist() == [-1.5 * 6] * 2
        optimizer.close()
        assert not weight._post_accumulate_grad_hooks

    run_two(body)


@pytest.mark.parametrize("options", [{}, {"overlap_step": True}], ids=str)
def test_a_hook_sees_what_earlier_calls_of_backward_have_left(options: dict[str, Any]) -> None:
    """The second call adds to the mean, whose sum is on its way with overlap_step."""

    def body(store: gw.kv.KVStore) -> None:
        weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
        optimizer = optimizer_of(weights, store, **options)
        for weight in weights:
            weight.register_post_accumulate_grad_hook(in_place)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(2):
                ((weights[0] + weights[1]) * (store.rank + 1)).sum().backward()
            optimizer.step()
        optimizer.synchronize()
        for weight in weights:  # ((2 * 1.5) + 1.5) * 2 in each step
            assert weight.tolist() == [-18.0] * 2
        optimizer.close()

    run_two(body)
