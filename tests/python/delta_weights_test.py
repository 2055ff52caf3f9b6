"""Weights that servers send as deltas: what a worker holds lags behind the server's own weight, which can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gradwire.kv import KVStore
from numpy.testing import assert_allclose, assert_array_equal
from python.inproc_ranks import run_ranks

ELEMENTS = 2000
DELTAS = "none:weights=delta:topk:ratio=0.05"


def gradient(step: int) -> Any:
    return np.random.default_rng(step).standard_normal(ELEMENTS).astype(np.float32)


def weight_after(steps: int) -> Any:
    """Of one process."""
    return -sum(gradient(step).astype(np.float64) for step in range(steps))


def begin(store: KVStore, weights: str = DELTAS) -> None:
    store.set_gradient_compression(weights)
    store.init("w", np.zeros(ELEMENTS, np.float32))
    store.set_optimizer("sgd", learning_rate=1.0, rescale_grad=1 / store.num_workers)


def train(store: KVStore, first: int, end: int) -> Any:
    out = np.zeros(ELEMENTS, np.float32)
    for step in range(first, end):
        store.push("w", gradient(step))
        store.pull("w", out)
    return out


def pulled(store: KVStore) -> Any:
    out = np.zeros(ELEMENTS, np.float32)
    store.pull("w", out)
    return out


def test_the_first_pull_brings_what_workers_hold_and_the_next_the_servers_weight() -> None:
    held: dict[int, Any] = {}

    def body(store: KVStore) -> None:
        begin(store)
        held[store.rank] = train(store, 0, 20)
        assert np.abs(held[store.rank] - weight_after(20)).max() > 0.5
        assert_allclose(pulled(store), weight_after(20), atol=1e-4)
        assert_allclose(pulled(store), weight_after(20), atol=1e-4)
        after = train(store, 20, 21)  # training goes on as if nobody had looked
        store.pushpull("w", gradient(21), out=after)
        assert_allclose(pulled(store), weight_after(22), atol=1e-4)

    run_ranks(2, body)
    assert_array_equal(held[0], held[1])


def test_evaluating_changes_no_bit_of_the_training() -> None:
    found = []

    def body(store: KVStore, evaluates: bool) -> None:
        begin(store)
        for step in range(8):
            out = train(store, step, step + 1)
            if evaluates and store.rank == 0:
                pulled(store)
        if store.rank == 0:
            found.append(out)

    for evaluates in (False, True):
        run_ranks(2, lambda store, evaluates=evaluates: body(store, evaluates))
    assert_array_equal(found[0], found[1])


def test_whole_weights_are_the_servers_from_the_next_pull_on() -> None:
    def body(store: KVStore) -> None:
        begin(store)
        train(store, 0, 20)
        store.set_gradient_compression("none")
        assert_allclose(pulled(store), weight_after(20), atol=1e-4)

    run_ranks(2, body)


def test_rounded_weights_are_whole_ones_from_the_next_pull_on() -> None:
    def body(store: KVStore) -> None:
        begin(store, "none:weights=bf16")
        rounded = train(store, 0, 3)
        store.set_gradient_compression("none")
        exact = pulled(store)
        assert_allclose(exact, weight_after(3), atol=1e-4)
        assert np.abs(rounded - exact).max() > 1e-3

    run_ranks(2, body)


def test_another_job_reads_the_weight_from_a_checkpoint(tmp_path: Path) -> None:
    held: dict[int, Any] = {}

    def save(store: KVStore) -> None:
        begin(store)
        held[store.rank] = train(store, 0, 20)
        store.save_checkpoint(tmp_path)

    def load(store: KVStore, weights: str) -> None:
        begin(store, weights)
        store.load_checkpoint(tmp_path)
        if weights == DELTAS:  # what follows has the bits of the job that was saved
            assert_array_equal(pulled(store), held[0])
        assert_allclose(pulled(store), weight_after(20), atol=1e-4)

    run_ranks(2, save)
    for weights in (DELTAS, "none"):
        run_ranks(3, lambda store, weights=weights: load(store, weights))
