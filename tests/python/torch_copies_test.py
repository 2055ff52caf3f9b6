"""Copies and pickles: of what gradwire.torch makes, they are plain optimizers; of models, plain models."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from python.inproc_ranks import run_ranks
from python.two_ranks import batch, require_equal, run_two, seeded, wrapped
from torch import nn
from torch.optim.swa_utils import AveragedModel


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def saved(value: Any) -> Any:
    written = io.BytesIO()
    torch.save(value, written)
    written.seek(0)
    return torch.load(written, weights_only=False)


COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, pickled, saved]


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(model: nn.Module, optimizer: Any, rank: int, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(batch(rank, step, 3, 4)).square().sum().backward()
        optimizer.step()


def make(kind: str, model: nn.Module, store: gw.kv.KVStore) -> Any:
    if kind == "LocalStepOptimizer":
        return gw.torch.LocalStepOptimizer(
            momentum(list(model.parameters())), model.named_parameters(), "none", store, sync_every=2
        )
    return wrapped(model, store, momentum, compression="none", overlap_step=kind == "overlap_step")


@pytest.mark.parametrize("copied", COPIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", ["DistributedOptimizer", "overlap_step", "LocalStepOptimizer"])
def test_a_copy_of_an_optimizer_is_the_one_inside(kind: str, copied: Callable[[Any], Any]) -> None:
    """In the middle of training, with sums on their way."""

    def body(store: gw.kv.KVStore) -> None:
        model = seeded(lambda: nn.Linear(4, 2))
        optimizer = make(kind, model, store)
        train(model, optimizer, store.rank, range(3))
        other = copied(optimizer)
        assert type(other) is torch.optim.SGD
        (group,) = other.param_groups
        assert group["lr"] == 0.1
        for own, theirs in zip(model.parameters(), group["params"], strict=True):
            assert torch.equal(own, theirs)
            buffers = [o.state[p]["momentum_buffer"] for o, p in ((optimizer, own), (other, theirs))]
            assert torch.equal(*buffers)
        before = [p.detach().clone() for p in model.parameters()]
        if copied is not copy.copy:  # which shares the parameters
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
            other.step()
            assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        train(model, optimizer, store.rank, range(3, 5))
        optimizer.close()

    run_two(body)


@pytest.mark.parametrize("copied", COPIES[1:], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", ["DistributedOptimizer", "overlap_step", "LocalStepOptimizer"])
def test_a_copy_of_a_model_exchanges_nothing(kind: str, copied: Callable[[Any], Any]) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = seeded(lambda: nn.Linear(4, 2))
        optimizer = make(kind, model, store)
        train(model, optimizer, store.rank, range(3))
        other = copied(model)
        require_equal(other, model)
        assert all(type(parameter) is nn.Parameter for parameter in other.parameters())
        assert not any(parameter._post_accumulate_grad_hooks for parameter in other.parameters())
        sent = store.stats()["bytes_raw"]
        if store.rank == 0:  # nobody else has to take part
            other.zero_grad()
            other(batch(5, 0, 3, 4)).square().sum().backward()
        assert store.stats()["bytes_raw"] == sent
        train(model, optimizer, store.rank, range(3, 5))
        optimizer.close()

    run_two(body)


@pytest.mark.parametrize("kind", ["DistributedOptimizer", "overlap_step"])
def test_averages_of_weights_follow_the_training(kind: str) -> None:
    """An EMA that is updated after each step has the average of the weights that one process has."""

    def body(store: gw.kv.KVStore) -> None:
        model = seeded(lambda: nn.Linear(4, 2))
        average = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
        optimizer = make(kind, model, store)
        expected = [p.detach().clone() for p in model.parameters()]
        for step in range(4):
            train(model, optimizer, store.rank, range(step, step + 1))
            average.update_parameters(model)
            optimizer.synchronize()
            for value, parameter in zip(expected, model.parameters(), strict=True):
                value.copy_(parameter.detach() if step == 0 else 0.5 * value + 0.5 * parameter.detach())
        for value, parameter in zip(expected, average.module.parameters(), strict=True):
            torch.testing.assert_close(value, parameter.detach())
        optimizer.close()

    run_two(body)


@pytest.mark.parametrize("copied", COPIES[1:3], ids=lambda f: f.__name__)
def test_a_copy_of_a_scheduler_has_a_plain_optimizer(copied: Callable[[Any], Any]) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = seeded(lambda: nn.Linear(4, 2))
        optimizer = make("DistributedOptimizer", model, store)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
        state = copied(scheduler.state_dict())
        assert state["_last_lr"] == [0.05]
        optimizer.close()

    run_ranks(1, body)


@pytest.mark.parametrize("copied", COPIES, ids=lambda f: f.__name__)
def test_a_sampler_is_itself(copied: Callable[[Any], Any]) -> None:
    def body(store: gw.kv.KVStore) -> None:
        sampler = gw.torch.ShardSampler(range(10), store=store, shuffle=True)
        assert list(copied(sampler)) == list(sampler)

    run_ranks(1, body)
