"""Workers with different numbers of batches: kv.join() and what torch's front end makes of it. Ranks are threads."""

from __future__ import annotations

import copy
import time
from typing import Any

import gradwire as gw
import gradwire.torch
import numpy as np
import pytest
import torch
from python.inproc_ranks import run_ranks
from torch import nn
from torch.utils.data import DataLoader

STEPS = (3, 1, 2)  # of each rank, in an epoch

with torch.random.fork_rng():
    torch.manual_seed(0)
    FRESH = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return model(torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * step + rank))).square().sum()


def test_sums_are_of_those_who_still_push() -> None:
    def body(store: gw.kv.KVStore) -> None:
        store.init("w", np.zeros(5, np.float32))
        out = np.empty(5, np.float32)
        for _ in range(2):
            for step in range(STEPS[store.rank]):
                store.pushpull("w", np.full(5, 1 + store.rank, np.float32), out)
                assert (out == sum(1 + rank for rank, steps in enumerate(STEPS) if step < steps)).all()
            assert store.join() == 0
            store.pushpull("w", np.full(5, 1, np.float32), out)
            assert (out == 3).all()

    run_ranks(3, body)


def test_alone_nobody_is_waited_for() -> None:
    store = gw.kv.create("local")
    assert store.join() == 0
    store.close()


@pytest.mark.parametrize("steps_of", [STEPS, (2, 0), (0, 1)])
@pytest.mark.parametrize(
    "options", [{}, {"overlap_step": True}, {"compression": "2bit", "codecs": {"*": "2bit"}}]
)
def test_means_have_zeros_in_the_place_of_who_has_joined(
    options: dict[str, object], steps_of: tuple[int, ...]
) -> None:
    """Against one process: after each epoch all go on from the model of the rank that joined last."""
    lossless = "compression" not in options
    expected, plain = copy.deepcopy(FRESH), []
    for epoch in range(2):
        for step in range(max(steps_of)):
            expected.zero_grad()
            for rank, steps in enumerate(steps_of):
                if step < steps:
                    (loss_of(expected, rank, 7 * epoch + step) / len(steps_of)).backward()
            with torch.no_grad():
                for p in expected.parameters():
                    p -= 0.01 * p.grad
        plain.append(copy.deepcopy(expected))
    weights: dict[int, bytes] = {}

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = gw.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters(), store=store, **options
        )
        for epoch in range(2):
            for step in range(steps_of[store.rank]):
                optimizer.zero_grad()
                loss_of(model, store.rank, 7 * epoch + step).backward()
                optimizer.step()
            last = optimizer.join()
            assert last == steps_of.index(max(steps_of))
            gw.torch.broadcast_parameters(model.state_dict(), root_rank=last, store=store)
            for ours, theirs in zip(model.parameters(), plain[epoch].parameters(), strict=True):
                if lossless:
                    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        optimizer.close()
        weights[store.rank] = b"".join(p.detach().numpy().tobytes() for p in model.parameters())

    run_ranks(len(steps_of), body)
    assert len(set(weights.values())) == 1


def test_who_had_no_batch_has_not_taken_the_last_step() -> None:
    """Also where it is in all rounds, and joins behind the one that has taken the only step."""

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = gw.torch.DistributedOptimizer(torch.optim.SGD(model.parameters()), store=store)
        join = store.join
        if store.rank == 0:
            loss_of(model, 0, 0).backward()
            optimizer.step()
        else:
            store.join = lambda: time.sleep(0.3) or join()  # type: ignore[method-assign,func-returns-value]
        assert optimizer.join() == 0
        optimizer.close()

    run_ranks(2, body)


@pytest.mark.parametrize(
    ("make", "options", "named"),
    [
        (torch.optim.SGD, {"compression": "auto"}, "compression='auto'.*name a codec"),
        (torch.optim.SGD, {"warm_up": [("fp16", 2)]}, "warm_up at step 1 of 2.*end before"),
        (torch.optim.LBFGS, {}, "LBFGS.*another optimizer"),
    ],
)
def test_steps_that_need_every_rank_refuse_join(make: Any, options: dict[str, Any], named: str) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = gw.torch.DistributedOptimizer(make(model.parameters()), store=store, **options)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, store.rank, 0)
            loss.backward()
            return loss

        optimizer.step(closure)
        with pytest.raises(ValueError, match=f"rank {store.rank}, with {named}"):
            optimizer.join()
        if "warm_up" in options:
            optimizer.step(closure)  # the last of it
            assert optimizer.join() in (0, 1)
        optimizer.close()

    run_ranks(2, body)


@pytest.mark.parametrize("loads", [[1, 2], [1, 0]])
def test_the_samplers_example_has_all_ranks_end_alike(loads: list[float]) -> None:
    ends: dict[int, bytes] = {}

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = gw.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), store=store
        )
        data = torch.arange(6)
        sampler = gw.torch.ShardSampler(data, store, work_load_list=loads, seed=7)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for batch in DataLoader(data, batch_size=2, sampler=sampler):
                optimizer.zero_grad()
                loss_of(model, store.rank, int(batch[0])).backward()
                optimizer.step()
            last = optimizer.join()
            gw.torch.broadcast_parameters(model.state_dict(), root_rank=last, store=store)
            gw.torch.broadcast_optimizer_state(optimizer, root_rank=last, store=store)
        momenta = [state["momentum_buffer"] for state in optimizer.state_dict()["state"].values()]
        assert momenta
        ends[store.rank] = b"".join(t.detach().numpy().tobytes() for t in [*model.parameters(), *momenta])
        optimizer.close()

    run_ranks(2, body)
    assert ends[0] == ends[1]


def test_what_has_not_been_sent_is_kept() -> None:
    def body(store: gw.kv.KVStore) -> None:
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        store.init("w", np.zeros(4, np.float32))
        out = np.empty(4, np.float32)
        if store.rank == 1:
            store.pushpull("w", np.full(4, 0.375, np.float32), out)
        assert store.join() == 1
        store.pushpull("w", np.full(4, 0.125 * store.rank, np.float32), out)
        assert (out == 0.5).all()

    run_ranks(2, body)
