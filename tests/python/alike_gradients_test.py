"""Tensors whose magnitudes are all alike, or that have one element, arrive whole through 2bit with agreed scales."""

from __future__ import annotations

from collections.abc import Callable

import gradwire as gw
import gradwire.torch
import numpy as np
import pytest
import torch
from python.inproc_ranks import run_ranks

ROUNDS = 200
Gradient = Callable[[np.random.Generator, int], np.ndarray]
GRADIENTS: dict[str, Gradient] = {
    "one_element": lambda rng, rank: np.full(1, 0.7 * (1 + 0.3 * rng.standard_normal())),
    "constant_row": lambda rng, rank: np.full(40, 0.7 * (1 + 0.3 * rng.standard_normal())),
    "two_valued": lambda rng, rank: np.where(np.arange(40) % 3, 0.7, -1.0),
    "other_on_each_worker": lambda rng, rank: np.full(3, 10.0**rank),
    "tail_of_one_element": lambda rng, rank: np.full(65537, 0.5),
}


@pytest.mark.parametrize("reply", ["exact", "2bit", "fp32"])
@pytest.mark.parametrize("kind", GRADIENTS)
def test_what_is_pushed_arrives(kind: str, reply: str) -> None:
    given, arrived = {}, {}
    rounds = 30 if kind == "tail_of_one_element" else ROUNDS

    def train(store: gw.kv.KVStore) -> None:
        store.set_gradient_compression(f"2bit:threshold=auto,reply={reply}")
        rng = np.random.default_rng(store.rank)
        make = GRADIENTS[kind]
        zeros = make(rng, store.rank).astype(np.float32) * 0
        store.init("w", zeros)
        total, got, out = zeros.astype(np.float64), zeros.astype(np.float64), zeros.copy()
        for _ in range(rounds):
            grad = make(rng, store.rank).astype(np.float32)
            store.pushpull("w", grad, out=out)
            total += grad
            got += out
        given[store.rank], arrived[store.rank] = total, got

    run_ranks(2, train)
    np.testing.assert_array_equal(arrived[0], arrived[1])
    # What is kept is a few gradients of each rank, whatever the number of rounds.
    largest = max(np.abs(total).max() / rounds for total in given.values())
    np.testing.assert_allclose(arrived[0], given[0] + given[1], rtol=0, atol=2 * 4 * largest)


def test_a_scalar_weight_is_learnt() -> None:
    weights = {}

    def train(store: gw.kv.KVStore) -> None:
        weight = torch.nn.Parameter(torch.zeros(1, 1))
        optimizer = gw.torch.DistributedOptimizer(
            torch.optim.SGD([weight], lr=0.05), [("weight", weight)], "2bit", store=store
        )
        random = torch.Generator().manual_seed(1 + store.rank)
        for _ in range(ROUNDS):
            x = torch.randn(16, 1, generator=random)
            optimizer.zero_grad()
            (x @ weight - 3 * x).square().mean().backward()
            optimizer.step()
        weights[store.rank] = weight.item()

    run_ranks(2, train)
    assert weights[0] == weights[1]
    assert abs(weights[0] - 3) < 0.05
