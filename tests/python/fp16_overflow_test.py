"""A gradient beyond what fp16 holds: reported as an infinity is, which torch's own fp16 hook would make of it."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import gradwire as gw
import gradwire.torch
import numpy as np
import pytest
import torch
from gradwire.compress import Compression
from gradwire.gathered_sum import GatheredSum
from python.inproc_ranks import run_ranks

LARGEST = 65504.0
SAID = "a value beyond its codec's format"


@contextlib.contextmanager
def warned() -> Iterator[list[str]]:
    """What is said within, on any thread."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
        said.extend(str(w.message) for w in caught)


class Worker:
    """One parameter of four elements, whose gradient is given. A matrix: vectors are not compressed."""

    def __init__(self, store: gw.kv.KVStore, codec: str, **options: Any) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(2, 2))
        self.optimizer = gw.torch.DistributedOptimizer(
            torch.optim.SGD([self.weight], lr=1.0), [("weight", self.weight)], codec, store=store, **options
        )
        self.scaler: Any = options.get("grad_scaler")

    def step(self, gradient: list[float]) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = (self.weight.flatten() * torch.tensor(gradient)).sum()
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        assert self.weight.grad is not None
        return self.weight.grad.flatten().clone()


@pytest.mark.parametrize(
    "codec", ["fp16", "topk:ratio=1,values=fp16", "randomk:ratio=1,values=fp16,reply=fp32"]
)
def test_the_largest_is_sent_with_a_warning_and_the_rest_arrives_later(codec: str) -> None:
    means: dict[int, list[torch.Tensor]] = {}

    def train(store: gw.kv.KVStore) -> None:
        worker = Worker(store, codec)
        given = [[1e5, -1e5, 1.0, 0.0], [0.0] * 4] if store.rank == 1 else [[0.0] * 4] * 2
        means[store.rank] = [worker.step(gradient) for gradient in given]

    with warned() as said:
        run_ranks(2, train)
    assert sum(SAID in text for text in said) == 2, said
    for first, second in means.values():
        assert first.tolist() == [LARGEST / 2, -LARGEST / 2, 0.5, 0.0]
        assert second.tolist() == [(1e5 - LARGEST) / 2, -(1e5 - LARGEST) / 2, 0.0, 0.0]


def test_a_sum_beyond_the_reply_is_reported_too() -> None:
    means: dict[int, list[torch.Tensor]] = {}

    def train(store: gw.kv.KVStore) -> None:
        worker = Worker(store, "fp16:reply=fp16")
        means[store.rank] = [worker.step([4e4, 1.0, 2.0, 3.0]), worker.step([0.0] * 4)]

    with warned() as said:
        run_ranks(2, train)
    assert sum(SAID in text for text in said) == 2, said
    for first, second in means.values():
        assert first.tolist() == [LARGEST / 2, 1.0, 2.0, 3.0]
        assert second.tolist() == [(8e4 - LARGEST) / 2, 0.0, 0.0, 0.0]


def test_skip_step_takes_no_such_step_and_keeps_nothing_of_it() -> None:
    weights: dict[int, torch.Tensor] = {}

    def train(store: gw.kv.KVStore) -> None:
        worker = Worker(store, "fp16", on_nonfinite="skip_step")
        worker.step([0.1, 0.2, 0.3, 0.4])
        before = worker.weight.detach().clone()
        vetoed = worker.step([1e5 if store.rank == 1 else 0.0, 1.0, 1.0, 1.0])
        assert vetoed.isnan().any()
        assert torch.equal(worker.weight.detach(), before)
        worker.step([0.1, 0.2, 0.3, 0.4])
        weights[store.rank] = worker.weight.detach().clone()

    def undisturbed(store: gw.kv.KVStore) -> None:
        worker = Worker(store, "fp16", on_nonfinite="skip_step")
        for _ in range(2):
            worker.step([0.1, 0.2, 0.3, 0.4])
        for weight in weights.values():
            assert torch.equal(worker.weight.detach(), weight)

    with warned() as said:
        run_ranks(2, train)
        run_ranks(2, undisturbed)
    assert sum(SAID in text and "no rank takes this step" in text for text in said) == 2, said


def test_a_grad_scaler_on_every_rank_skips_the_step_and_lowers_its_scale() -> None:
    def train(store: gw.kv.KVStore) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
        worker = Worker(store, "fp16", grad_scaler=scaler)
        worker.step([1.0, 2.0, 3.0, 4.0])
        before = worker.weight.detach().clone()
        worker.step([1e5 if store.rank == 1 else 0.0, 1.0, 1.0, 1.0])
        assert scaler.get_scale() == 2.0
        assert torch.equal(worker.weight.detach(), before)
        worker.step([1.0, 2.0, 3.0, 4.0])
        assert worker.weight.flatten().tolist() == [-2.0, -4.0, -6.0, -8.0]

    run_ranks(2, train)


def test_stores_of_torch_distributed_say_it_too() -> None:
    """GatheredSum, two ranks in one process."""
    barrier, given, sums = threading.Barrier(2), [None, None], [None, None]

    def run(rank: int) -> None:
        def gather(payload: Any) -> list[Any]:
            given[rank] = payload
            barrier.wait(10)
            both = [np.array(each) for each in given]
            barrier.wait(10)
            return both

        end = GatheredSum(Compression.parse("fp16:reply=fp32"), rank, gather)
        values = np.array([1e5 * rank, 2.0], np.float32)
        sums[rank] = [end.add("w", values), end.add("w", np.zeros(2, np.float32))]

    with warned() as said:
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum("a value beyond what the codec's format can (fp16: 65504)" in text for text in said) == 2, said
    for first, second in sums:
        assert first.tolist() == [LARGEST, 4.0]
        assert second.tolist() == [1e5 - LARGEST, 0.0]
