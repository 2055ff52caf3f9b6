"""Local steps of which ranks have taken other numbers: an error on all, and not a wait."""

from __future__ import annotations

from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from python.inproc_ranks import run_ranks
from torch import nn

ROUNDS = [{}, {"fragments": 3}, {"merge_after": 2}]


def optimizer_of(model: nn.Module, store: gw.kv.KVStore, codec: str, **options: Any) -> Any:
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    return gw.torch.LocalStepOptimizer(
        inner,
        model.named_parameters(),
        codec,
        store,
        sync_every=5,
        outer=lambda weights: torch.optim.SGD(weights, lr=1.0),
        **options,
    )


def model_of() -> nn.Module:
    return nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in ((4, 8), (5, 3), (2, 2))])


def train(model: nn.Module, optimizer: Any, rank: int, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        sum((p * (0.01 * (rank + 1))).sum() for p in model.parameters()).backward()
        optimizer.step()


@pytest.mark.parametrize("steps", [(23, 26, 23), (20, 29, 20), (26, 20, 21), (0, 7, 0)], ids=str)
@pytest.mark.parametrize("options", ROUNDS, ids=str)
def test_ranks_that_have_taken_other_numbers_of_steps(
    options: dict[str, Any], steps: tuple[int, ...]
) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = model_of()
        optimizer = optimizer_of(model, store, "none", **options)
        others = ", ".join(map(str, steps))

        def train_all() -> None:
            train(model, optimizer, store.rank, steps[store.rank])
            optimizer.synchronize()

        with pytest.raises(ValueError, match=f"the ranks have taken {others} local steps"):
            train_all()

    run_ranks(3, body)


@pytest.mark.parametrize("codec", ["none", "int8"])
@pytest.mark.parametrize("options", ROUNDS[:2], ids=str)
def test_ranks_that_have_taken_as_many(options: dict[str, Any], codec: str) -> None:
    """Each moves by 0.01 times its number, from 1, in a step, and the shared weights by the mean of that."""

    def body(store: gw.kv.KVStore) -> None:
        model = model_of()
        optimizer = optimizer_of(model, store, codec, **options)
        for count in (23, 7):
            train(model, optimizer, store.rank, count)
            optimizer.synchronize()
        for parameter in model.parameters():
            torch.testing.assert_close(parameter.mean().item(), -30 * 0.02, rtol=0.05, atol=0)
        optimizer.close()

    run_ranks(3, body)


def test_parameters_added_to_the_optimizer_inside_take_part() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model, head = model_of(), nn.Linear(2, 2)
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = gw.torch.LocalStepOptimizer(inner, model.named_parameters(), "none", store, sync_every=2)
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
        inner.add_param_group({"params": list(head.parameters())})
        for _ in range(4):
            optimizer.zero_grad()
            sum((p * (store.rank + 1)).sum() for p in [*model.parameters(), *head.parameters()]).backward()
            optimizer.step()
        optimizer.synchronize()
        blob = head.weight.detach().numpy().tobytes()
        assert len(set(store.engine.all_gather("heads", blob))) == 1
        optimizer.close()

    run_ranks(2, body)
