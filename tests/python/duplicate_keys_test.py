"""A key that comes several times in one call: its values are added, as those of several devices; its outs get the sum.

MXNet does the same (src/kvstore/kvstore_local.h, GroupKVPairs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradwire as gw
import numpy as np
import pytest
from gradwire.kv import KVStore
from numpy.testing import assert_array_equal
from python.inproc_ranks import run_ranks


def full(value: float) -> Any:
    return np.full(2, value, np.float32)


def everywhere(body: Callable[[KVStore, int], None]) -> None:
    """In a store of this process, and as two ranks of a job."""
    for name in ("local", "device"):
        store = gw.kv.create(name)
        body(store, 1)
        store.close()

    def on_rank(store: KVStore) -> None:
        body(store, 2)

    run_ranks(2, on_rank)


@pytest.mark.parametrize("codec", ["none", "2bit:threshold=1"])
def test_values_of_one_key_are_added(codec: str) -> None:
    def body(store: KVStore, ranks: int) -> None:
        store.set_gradient_compression(codec)
        store.init([3, 5], [full(0), full(0)])
        out = full(0)
        store.push([3, 3, 5], [full(1), full(1), full(1)])
        store.pull(3, out)
        # Each device of a local store encodes, and sends 1; workers of a job encode the sum, of which 1 is sent.
        sent = 2 if codec == "none" or ranks == 1 else 1
        assert_array_equal(out, full(sent * ranks))
        store.pull(5, out)
        assert_array_equal(out, full(ranks))

    everywhere(body)


def test_a_key_alternates_with_others_and_counts_one_round() -> None:
    def body(store: KVStore, ranks: int) -> None:
        store.init(["a", "b"], [full(0), full(0)])
        for step in (1, 2):
            outs = [full(0), full(0), full(0)]
            values = [full(step), full(10), [full(2), full(3)]]
            store.pushpull(["a", "b", "a"], values, out=outs)
            assert_array_equal(outs[0], full(ranks * (step + 5)))
            assert_array_equal(outs[1], full(ranks * 10))
            assert_array_equal(outs[2], outs[0])

    everywhere(body)


def test_in_place_all_get_the_sum() -> None:
    def body(store: KVStore, ranks: int) -> None:
        store.init("a", full(0))
        values = [full(1), full(2)]
        store.push_pull(["a", "a"], values)
        for value in values:
            assert_array_equal(value, full(3 * ranks))

    everywhere(body)


def test_a_pull_fills_every_out() -> None:
    def body(store: KVStore, ranks: int) -> None:
        store.init(["a", "b"], [full(1), full(2)])
        outs = [full(0), [full(0), full(0)], full(0)]
        store.pull(["a", "a", "b"], outs)
        assert_array_equal(outs[0], full(1))
        for out in outs[1]:
            assert_array_equal(out, full(1))
        assert_array_equal(outs[2], full(2))

    everywhere(body)


def test_a_new_key_that_comes_twice_is_declared_once() -> None:
    def body(store: KVStore, ranks: int) -> None:
        values = [full(1), full(2)]
        store.push_pull(["new", "new"], values)
        assert_array_equal(values[0], full(3 * ranks))

    everywhere(body)


@pytest.mark.parametrize("verb", ["init", "broadcast"])
def test_first_values_of_one_key_are_refused(verb: str) -> None:
    """As MXNet: "duplicate init of key"."""

    def body(store: KVStore, ranks: int) -> None:
        with pytest.raises(ValueError, match="key 3 was declared before"):
            getattr(store, verb)([3, 3], [full(1), full(2)])
        store.init(3, full(4))  # nothing of it was declared
        out = full(0)
        store.pull(3, out)
        assert_array_equal(out, full(4))

    everywhere(body)


def test_rows_of_one_table_are_one_round() -> None:
    def body(store: KVStore, ranks: int) -> None:
        store.init("table", gw.RowSparse([], [], (4, 2)))
        rows = [gw.RowSparse([1], full(1)[None]), gw.RowSparse([1, 2], np.ones((2, 2), np.float32))]
        for _ in range(2):
            store.push(["table", "table"], rows)
            out = np.zeros((2, 2), np.float32)
            store.row_sparse_pull("table", out=out, row_ids=[1, 2])
            assert_array_equal(out, ranks * np.array([[2, 2], [1, 1]]))
        outs = [np.zeros((1, 2), np.float32), np.zeros((2, 2), np.float32)]
        store.row_sparse_pull(["table", "table"], out=outs, row_ids=[[1], [2, 2]])  # each its own rows
        assert_array_equal(outs[0], 2 * ranks * np.ones((1, 2)))
        assert_array_equal(outs[1], ranks * np.ones((2, 2)))

    everywhere(body)
