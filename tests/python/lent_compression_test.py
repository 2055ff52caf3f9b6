"""An optimizer's codec is its own: neither the store's keys nor other optimizers travel by it, nor what follows it."""

from __future__ import annotations

import copy
from typing import Any

import gradwire as gw
import gradwire.torch
import numpy as np
import pytest
import torch
from python.inproc_ranks import run_ranks
from python.two_ranks import batch, require_equal, seeded, wrapped
from torch import nn

METRIC = np.array([10, 0.25, 3, 1e-3], np.float32)
CODECS: list[dict[str, Any]] = [
    {"compression": "2bit"},
    {"compression": "topk:ratio=0.25", "codecs": {"*": "int8"}},
    {"compression": "2bit", "warm_up": [("int8", 1)]},
]


def require_whole(store: gw.kv.KVStore, key: str) -> None:
    out = np.zeros(4, np.float32)
    for _ in range(2):
        store.pushpull(key, METRIC, out=out)
        np.testing.assert_array_equal(out, METRIC * np.float32(store.num_workers))


class Trained:
    """A model that ranks train together, and one process of both ranks' batches."""

    def __init__(self, store: gw.kv.KVStore, **options: Any) -> None:
        self._store = store
        self.model = seeded(lambda: nn.Sequential(nn.Linear(3, 40), nn.Linear(40, 1)))
        self.alone = copy.deepcopy(self.model)
        self.optimizer = wrapped(self.model, store, **options)
        self._plain = torch.optim.SGD(self.alone.parameters(), lr=0.1)

    def step(self, number: int) -> None:
        self.optimizer.zero_grad()
        self.model(batch(self._store.rank, number, 2, 3)).square().mean().backward()
        self.optimizer.step()
        self._plain.zero_grad()
        losses = [self.alone(batch(rank, number, 2, 3)).square().mean() for rank in range(2)]
        (sum(losses) / 2).backward()
        self._plain.step()

    def require_exact(self) -> None:
        for number in range(3):
            self.step(number)
        require_equal(self.model, self.alone)


@pytest.mark.parametrize("options", CODECS)
@pytest.mark.parametrize("name", ["allreduce", "dist_sync"])
def test_a_codec_is_one_optimizers(name: str, options: dict[str, Any]) -> None:
    def body(store: gw.kv.KVStore) -> None:
        store.init("before", np.zeros(4, np.float32))
        compressed = Trained(store, **options)
        store.init("meanwhile", np.zeros(4, np.float32))
        beside = Trained(store)
        for number in range(3):
            compressed.step(number)
        require_whole(store, "before")
        require_whole(store, "meanwhile")
        beside.require_exact()
        with pytest.raises(AssertionError):
            require_equal(compressed.model, compressed.alone)
        compressed.optimizer.close()
        assert store.compression.spec == "none"
        store.init("after", np.zeros(4, np.float32))
        require_whole(store, "after")
        require_whole(store, "before")
        beside.optimizer.close()
        later = Trained(store)
        later.require_exact()
        later.optimizer.close()

    run_ranks(2, body, name)


def test_what_was_set_on_the_store_is_the_default_again_and_its_keys_follow_it() -> None:
    def body(store: gw.kv.KVStore) -> None:
        store.init("k", np.zeros(4, np.float32))
        store.init("table", gw.RowSparse([], [], shape=(3, 4)))
        store.set_gradient_compression("fp16")
        first = Trained(store, compression="none")
        with pytest.raises(AssertionError):
            require_whole(store, "k")  # 1e-3 is no float16
        second = Trained(store)
        first.require_exact()
        second.step(0)
        with pytest.raises(AssertionError):
            require_equal(second.model, second.alone)
        store.set_gradient_compression("none")
        require_keys_exact(store)
        first.optimizer.close()
        second.optimizer.close()
        require_keys_exact(store)

    def require_keys_exact(store: gw.kv.KVStore) -> None:
        store.pushpull("k", METRIC, out=np.zeros(4, np.float32))  # brings what fp16 has left
        require_whole(store, "k")
        rows = gw.RowSparse([], np.zeros((0, 4), np.float32), shape=(3, 4))
        store.pushpull("table", gw.RowSparse([1], METRIC[None]), out=rows)
        np.testing.assert_array_equal(rows.rows, METRIC[None] * np.float32(2))

    run_ranks(2, body)


def test_alone_too() -> None:
    store = gw.kv.create("local")
    model = nn.Linear(8, 1, bias=False)
    optimizer = wrapped(model, store, compression="2bit")
    model(torch.arange(8.0)[None]).sum().backward()
    store.init("k", np.zeros(4, np.float32))
    require_whole(store, "k")
    optimizer.close()
    require_whole(store, "k")
    optimizer = wrapped(model, store)
    optimizer.zero_grad()
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.arange(8.0)[None]).sum().backward()
    assert torch.equal(model.weight.grad[0], torch.arange(8.0))
    optimizer.close()
    store.close()
