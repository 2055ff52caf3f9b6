"""Hooks on a step, by themselves: which are called, in which order, and what looks after them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gradwire.torch import step_hooks
from torch.optim import optimizer as torchs


class Steps(torch.optim.SGD):
    """Its step is noted in `calls`."""

    def __init__(self) -> None:
        super().__init__([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        self.calls: list[str] = []

    def step(self, closure: Any = None) -> None:
        self.calls.append("step")

    def add_hooks(self) -> None:
        self.register_step_pre_hook(lambda *_: self.calls.append("own before"))
        self.register_step_post_hook(lambda *_: self.calls.append("own after"))


@pytest.fixture
def optimizer() -> Steps:
    return Steps()


@pytest.fixture
def of_all(optimizer: Steps) -> Iterator[None]:
    """Hooks of all optimizers."""
    handles = [
        torchs.register_optimizer_step_pre_hook(lambda *_: optimizer.calls.append("all before")),
        torchs.register_optimizer_step_post_hook(lambda *_: optimizer.calls.append("all after")),
    ]
    yield
    for handle in handles:
        handle.remove()


@pytest.mark.usefixtures("of_all")
def test_hooks_are_called_around_a_block_as_torch_calls_them_around_a_step(optimizer: Steps) -> None:
    optimizer.add_hooks()
    optimizer.step()
    by_torch, optimizer.calls = optimizer.calls, []
    with step_hooks.called_around(optimizer):
        optimizer.calls.append("step")
    assert optimizer.calls == by_torch
    assert optimizer.calls == ["all before", "own before", "step", "own after", "all after"]


def test_hooks_get_the_optimizer_and_no_arguments(optimizer: Steps) -> None:
    given: list[tuple[Any, ...]] = []
    optimizer.register_step_pre_hook(lambda *arguments: given.append(arguments))
    with step_hooks.called_around(optimizer):
        pass
    assert given == [(optimizer, (), {})]


def test_hooks_after_a_step_that_failed_are_not_called(optimizer: Steps) -> None:
    optimizer.add_hooks()
    with pytest.raises(KeyError), step_hooks.called_around(optimizer):
        raise KeyError
    assert optimizer.calls == ["own before"]


def test_who_looks_comes_behind_the_hooks_and_for_the_block_alone(optimizer: Steps) -> None:
    optimizer.add_hooks()
    with step_hooks.followed_by(optimizer, lambda: optimizer.calls.append("look")):
        optimizer.step()
    assert optimizer.calls == ["own before", "look", "step", "own after"]
    optimizer.calls.clear()
    optimizer.step()
    assert "look" not in optimizer.calls


@pytest.mark.usefixtures("of_all")
def test_hooks_of_all_optimizers_are_reason_to_look(optimizer: Steps) -> None:
    with step_hooks.followed_by(optimizer, lambda: optimizer.calls.append("look")):
        optimizer.step()
    assert optimizer.calls == ["all before", "look", "step", "all after"]


def test_without_hooks_nobody_looks(optimizer: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_hooks, "_global_optimizer_pre_hooks", {})  # other tests have left some
    with step_hooks.followed_by(optimizer, lambda: optimizer.calls.append("look")):
        optimizer.step()
    assert optimizer.calls == ["step"]


def test_an_optimizer_that_torch_has_not_initialised_has_no_hooks_of_its_own() -> None:
    bare = object.__new__(Steps)
    bare.calls = []
    with step_hooks.called_around(bare), step_hooks.followed_by(bare, lambda: bare.calls.append("look")):
        pass
    assert bare.calls == []
