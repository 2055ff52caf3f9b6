"""Shares of a data set: together they are all of it, once."""

from __future__ import annotations

import gradwire as gw
import gradwire.torch
import pytest
from gradwire.samplers import shard
from python.inproc_ranks import run_ranks


@pytest.mark.parametrize("examples", [0, 1, 7, 100, 60_001])
@pytest.mark.parametrize("loads", [None, [1, 1, 1], [2, 1, 1], [0, 0.5, 3.25], [1e-9, 1, 1e9]])
def test_shares_cover_all_examples_once(examples: int, loads: list[float] | None) -> None:
    shares = [shard(examples, rank, 3, loads) for rank in range(3)]
    assert [index for share in shares for index in share] == list(range(examples))


def test_equal_shares_differ_by_one_at_most() -> None:
    for workers in (1, 2, 7, 16):
        sizes = {len(shard(1000, rank, workers)) for rank in range(workers)}
        assert max(sizes) - min(sizes) <= 1


def test_shares_are_as_large_as_loads_say() -> None:
    sizes = [len(shard(1000, rank, 4, [4, 2, 1, 1])) for rank in range(4)]
    assert sizes == [500, 250, 125, 125]
    assert len(shard(10, 1, 3, [1, 0, 1])) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((10, 3, 3), "rank=3, num_workers=3"),
        ((-1, 0, 1), "examples=-1"),
        ((10, 0, 2, [1]), r"work_load_list=\[1\]: expected 2 numbers"),
        ((10, 0, 2, [1, -1]), "0 or more"),
        ((10, 0, 2, [0, 0]), "not all 0"),
        ((10, 0, 2, [1, float("nan")]), "work_load_list"),
    ],
)
def test_bad_shares_are_named(arguments: tuple[int, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        shard(*arguments)  # type: ignore[arg-type]


def test_a_sampler_yields_this_workers_share_of_the_epochs_order() -> None:
    orders: dict[tuple[int, int], list[int]] = {}

    def body(store: gw.kv.KVStore) -> None:
        sampler = gw.torch.ShardSampler(range(50), store, work_load_list=[3, 1], seed=4)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            orders[store.rank, epoch] = list(sampler)
            assert list(sampler) == orders[store.rank, epoch]
        assert len(sampler) == len(orders[store.rank, 0])
        plain = gw.torch.ShardSampler(range(50), store, shuffle=False)
        assert list(plain) == list(shard(50, store.rank, 2))

    run_ranks(2, body)
    for epoch in range(2):
        assert sorted(orders[0, epoch] + orders[1, epoch]) == list(range(50))
    assert len(orders[0, 0]) == 38
    assert orders[0, 0] != orders[0, 1]
