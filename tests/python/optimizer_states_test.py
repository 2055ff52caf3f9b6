"""kv.save_optimizer_states and load_optimizer_states: what their users see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradwire
import numpy as np
import pytest
from gradwire.kv import KVStore
from gradwire.sparse import RowSparse
from numpy.testing import assert_array_equal
from python.inproc_ranks import run_ranks

SIZE = 70_000


pytestmark = pytest.mark.usefixtures("no_job")


def gradient(seed: int) -> Any:
    return np.random.default_rng(seed).normal(0, 0.5, SIZE).astype(np.float32)


def opened(stores: list[KVStore], weight: Any, optimizer: str = "adam", **parameters: float) -> KVStore:
    store = gradwire.kv.create("local")
    stores.append(store)
    store.init("w", weight)
    store.set_optimizer(optimizer, **parameters)
    return store


def pushed(store: KVStore, *seeds: int) -> Any:
    """The weight after pushes of these gradients."""
    out = np.empty(SIZE, np.float32)
    for seed in seeds:
        store.pushpull("w", gradient(seed), out=out)
    return out


def test_the_states_go_on_and_parameters_are_the_jobs_own(stores: list[KVStore], tmp_path: Path) -> None:
    first = opened(stores, gradient(9), learning_rate=0.25, wd=0.125)
    at = pushed(first, 0, 1)
    first.save_optimizer_states(tmp_path / "a")
    second = opened(stores, at, learning_rate=0.25, wd=0.125)
    second.load_optimizer_states(str(tmp_path / "a"))
    third = opened(stores, at, learning_rate=0.25, wd=0.125)
    undisturbed = pushed(first, 2)
    assert_array_equal(pushed(second, 2), undisturbed)
    assert (pushed(third, 2) != undisturbed).any()  # without them
    second.set_learning_rate(0.01)
    first.set_learning_rate(0.01)
    assert_array_equal(pushed(second, 3), pushed(first, 3))


def test_a_dumped_optimizer_is_set(stores: list[KVStore], tmp_path: Path) -> None:
    first = opened(stores, gradient(9), learning_rate=0.25, wd=0.125)
    at = pushed(first, 0)
    first.set_learning_rate(0.5)
    first.save_optimizer_states(tmp_path / "a", dump_optimizer=True)
    second = opened(stores, at, "sgd", learning_rate=0.1, momentum=0.9)
    second.load_optimizer_states(tmp_path / "a")
    assert_array_equal(pushed(second, 1), pushed(first, 1))
    for store in (first, second):
        store.set_learning_rate(0.01)  # knows the other parameters
    assert_array_equal(pushed(second, 2), pushed(first, 2))


def test_a_damaged_or_foreign_file_is_named(stores: list[KVStore], tmp_path: Path) -> None:
    store = opened(stores, gradient(9), learning_rate=0.25)
    pushed(store, 0)
    file = tmp_path / "a"
    store.save_optimizer_states(file)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    for bad in (content, content[:-1], b"weights of another kind"):
        file.write_bytes(bad)
        with pytest.raises(gradwire.DecodeError, match=f"{file} .*; "):
            store.load_optimizer_states(file)
    with pytest.raises(RuntimeError, match=r"nowhere cannot be opened \(No such file"):
        store.load_optimizer_states(tmp_path / "nowhere")
    undisturbed = opened(stores, gradient(9), learning_rate=0.25)
    assert_array_equal(pushed(store, 1), pushed(undisturbed, 0, 1))


def test_misuse_is_named(stores: list[KVStore], tmp_path: Path) -> None:
    store = gradwire.kv.create("local")
    stores.append(store)
    store.init("w", gradient(0))
    with pytest.raises(
        RuntimeError, match=r"no optimizer is set, .*; call set_optimizer on every worker first"
    ):
        store.save_optimizer_states(tmp_path / "a")
    with pytest.raises(RuntimeError, match="load_optimizer_states: no optimizer is set"):
        store.load_optimizer_states(tmp_path / "a")
    store.set_optimizer("adagrad")
    store.save_optimizer_states(tmp_path / "a")
    with pytest.raises(RuntimeError, match="no/such"):
        store.save_optimizer_states(tmp_path / "no" / "such")
    other = opened(stores, gradient(0), "sgd", momentum=0.9)
    with pytest.raises(
        ValueError, match=r"holds the states of adagrad, and this job has set 'sgd momentum=0.9'"
    ):
        other.load_optimizer_states(tmp_path / "a")
    store.init("table", RowSparse([], [], (10, 4)))
    with pytest.raises(ValueError, match="tables of rows"):
        store.save_optimizer_states(tmp_path / "a")


def test_rank_0_saves_alone_and_all_load(tmp_path: Path) -> None:
    weights: dict[str, Any] = {}

    def train(store: KVStore, first: int, end: int) -> Any:
        return pushed(store, *(10 * step + store.rank for step in range(first, end)))

    def save(store: KVStore) -> None:
        store.init("w", gradient(9))
        store.set_optimizer("sgd", learning_rate=0.1, momentum=0.9)
        at = train(store, 0, 3)
        if store.rank == 0:
            store.save_optimizer_states(tmp_path / "a")
        after = train(store, 3, 5)
        if store.rank == 0:
            weights.update(at=at, after=after)

    def load(store: KVStore) -> None:
        store.init("w", weights["at"])
        store.set_optimizer("sgd", learning_rate=0.1, momentum=0.9)
        store.load_optimizer_states(tmp_path / "a")
        assert_array_equal(train(store, 3, 5), weights["after"])

    run_ranks(3, save)
    run_ranks(3, load)


def test_stores_of_other_makers_say_that_they_have_none() -> None:
    class Sums(gradwire.kv.AbstractKVStore):
        rank, num_workers = 0, 1

        def broadcast(self, name: Any, tensor: Any, root_rank: Any = 0, /) -> None: ...

        def push_pull(self, name: Any, tensor: Any, output: Any = None, /) -> None: ...

    with pytest.raises(NotImplementedError, match="the store 'sums' gives no optimizer's states"):
        Sums().save_optimizer_states("a")
    with pytest.raises(NotImplementedError, match="the store 'sums' takes no optimizer's states"):
        Sums().load_optimizer_states("a")
