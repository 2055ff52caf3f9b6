"""Parameters that are frozen while training goes on, and thaw again: as in a plain loop they stay what they are, and
what their codec has not sent yet stays theirs. Ranks are threads.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from python.inproc_ranks import run_ranks
from torch import nn

CODEC = "2bit:threshold=0.01"

with torch.random.fork_rng():
    torch.manual_seed(0)
    FRESH = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def loss_of(model: nn.Module, store: gw.kv.KVStore, step: int) -> torch.Tensor:
    x = torch.randn(6, 16, generator=torch.Generator().manual_seed(10 * step + store.rank))
    return model(x).square().mean()


def wrap(model: nn.Module, store: gw.kv.KVStore, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    options = {"compression": CODEC, "codecs": {"*": CODEC}} | options
    return gw.torch.DistributedOptimizer(optimizer, model.named_parameters(), store=store, **options)


def train(model: nn.Module, optimizer: Any, store: gw.kv.KVStore, steps: range, **zero_grad: Any) -> None:
    for step in steps:
        optimizer.zero_grad(**zero_grad)
        loss_of(model, store, step).backward()
        optimizer.step()
    optimizer.synchronize()


def residuals_of(optimizer: Any) -> dict[str, torch.Tensor]:
    return {
        name: residual.clone() for name, residual in optimizer.state_dict()["gradwire"]["residuals"].items()
    }


def require_one_model(store: gw.kv.KVStore, model: nn.Module) -> None:
    blob = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    assert len(set(store.engine.all_gather("weights", blob))) == 1


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("overlap_step", [False, True])
def test_a_frozen_layer_stays_and_what_it_is_owed_too(set_to_none: bool, overlap_step: bool) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(model, store, overlap_step=overlap_step)
        train(model, optimizer, store, range(4), set_to_none=set_to_none)
        for frozen in (model[0], model[2]):  # the second while the first thaws
            frozen.requires_grad_(False)
            before, owed = copy.deepcopy(frozen), residuals_of(optimizer)
            train(model, optimizer, store, range(4, 8), set_to_none=set_to_none)
            after = residuals_of(optimizer)
            for (name, p), was in zip(frozen.named_parameters(), before.parameters(), strict=True):
                assert torch.equal(p, was), name
            index = 0 if frozen is model[0] else 2
            for name, residual in owed.items():
                assert torch.equal(after[name], residual) == name.startswith(f"{index}."), name
            frozen.requires_grad_(True)
        train(model, optimizer, store, range(8, 10), set_to_none=set_to_none)
        assert not torch.equal(model[2].weight, before.weight)
        require_one_model(store, model)
        optimizer.close()

    run_ranks(2, body)


def test_a_gradient_that_a_frozen_layer_has_is_left_alone() -> None:
    """As in a plain loop that does not clear it: the optimizer goes on stepping by it."""

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(model, store)
        train(model, optimizer, store, range(2))
        model[0].requires_grad_(False)
        mean, weight = model[0].weight.grad.clone(), model[0].weight.detach().clone()
        for p in model[2:].parameters():
            p.grad = None
        loss_of(model, store, 2).backward()
        assert torch.equal(model[0].weight.grad, mean)
        optimizer.step()
        assert torch.equal(model[0].weight, weight - 0.5 * mean)
        require_one_model(store, model)
        optimizer.close()

    run_ranks(2, body)


def test_a_step_that_is_vetoed_leaves_what_a_frozen_layer_is_owed() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(model, store, on_nonfinite="skip_step")
        train(model, optimizer, store, range(4))
        model[0].requires_grad_(False)
        owed = residuals_of(optimizer)
        optimizer.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            (loss_of(model, store, 4) * (float("nan") if store.rank == 0 else 1.0)).backward()
        optimizer.step()
        after = residuals_of(optimizer)
        assert all(torch.equal(after[name], residual) for name, residual in owed.items())
        optimizer.close()

    run_ranks(2, body)


def test_what_is_frozen_or_thaws_between_the_passes_of_a_step() -> None:
    """What the passes before have left is still sent, and what thaws takes part from there on."""

    def body(store: gw.kv.KVStore) -> None:
        model, plain = copy.deepcopy(FRESH), copy.deepcopy(FRESH)
        optimizer = wrap(model, store, compression="none", codecs=None, backward_passes_per_step=2)
        oracle = torch.optim.SGD(plain.parameters(), lr=0.5)
        for step, frozen in enumerate((False, True, True, True, True, False, False, False)):
            for each in (model, plain):
                each[0].requires_grad_(not frozen)
            loss_of(model, store, 0).backward()
            loss_of(plain, store, 0).backward()
            if step % 2 == 1:
                for p in plain.parameters():
                    if p.grad is not None:
                        blobs = store.engine.all_gather("gradient", p.grad.numpy().tobytes())
                        means = [torch.frombuffer(bytearray(blob), dtype=torch.float32) for blob in blobs]
                        p.grad = (torch.stack(means).sum(0) / 2).view(p.shape)
                for each in (optimizer, oracle):
                    each.step()
                    each.zero_grad()
        torch.testing.assert_close(list(model.parameters()), list(plain.parameters()), rtol=0, atol=0)
        optimizer.close()

    run_ranks(2, body)


def test_a_rank_without_a_batch_leaves_out_what_the_others_do() -> None:
    """It stands in for the first step, in which ranks agree on what travels as rows."""

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(model, store)
        model[2].requires_grad_(False)
        train(model, optimizer, store, range(2 if store.rank == 0 else 0))
        assert optimizer.join() == 0
        assert torch.equal(model[2].weight, FRESH[2].weight)
        assert torch.equal(model[0].weight, FRESH[0].weight) == (store.rank == 1)
        gw.torch.broadcast_parameters(model.state_dict(), root_rank=0, store=store)
        model[2].requires_grad_(True)  # and in an epoch that has none for it, when that has been agreed on
        train(model, optimizer, store, range(2 if store.rank == 0 else 0))
        assert optimizer.join() == 0
        assert torch.equal(model[2].weight, FRESH[2].weight) == (store.rank == 1)
        optimizer.close()

    run_ranks(2, body)
