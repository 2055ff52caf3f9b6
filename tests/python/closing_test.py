"""A worker that closes its store leaves the others what its server has, and waits for nobody meanwhile."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from gradwire import _core
from gradwire.kv import KVStore
from gradwire.settings import definitions as settings
from gradwire.stores import worker
from numpy.testing import assert_allclose, assert_array_equal
from python.inproc_ranks import DEADLINE, await_event, run_ranks

ELEMENTS = 3000


def pulled(store: KVStore, key: str) -> Any:
    out = np.zeros(ELEMENTS, np.float32)
    store.pull(key, out)
    return out


@pytest.mark.parametrize("name", ["allreduce", "dist_async"])
def test_a_first_value_is_pulled_from_workers_that_have_closed(name: str) -> None:
    closed = [threading.Event() for _ in range(2)]

    def body(store: KVStore) -> None:
        keys = [f"key.{number}" for number in range(6)]  # of every server
        store.init(keys, [np.full(ELEMENTS, number, np.float32) for number in range(6)])
        if store.rank < 2:
            store.close()
            closed[store.rank].set()
            return
        for event in closed:
            await_event(event, "a close()")
        for number, key in enumerate(keys):
            assert_array_equal(pulled(store, key), np.full(ELEMENTS, number))

    run_ranks(3, body, name, staleness_bound=None) if name == "dist_async" else run_ranks(3, body, name)


def test_the_last_weight_is_pulled_from_workers_that_have_closed() -> None:
    closed = threading.Event()

    def body(store: KVStore) -> None:
        store.set_gradient_compression("none:weights=delta:topk:ratio=0.05")
        store.init(["a", "b"], [np.zeros(ELEMENTS, np.float32)] * 2)
        store.set_optimizer("sgd", learning_rate=1.0, rescale_grad=1 / store.num_workers)
        gradient = np.arange(ELEMENTS, dtype=np.float32) / ELEMENTS
        for _ in range(3):
            for key in ("a", "b"):
                store.push(key, gradient)
                pulled(store, key)
        if store.rank == 0:
            store.close()
            closed.set()
            return
        await_event(closed, "close()")
        for key in ("a", "b"):
            assert_allclose(pulled(store, key), -3 * gradient, atol=1e-5)

    run_ranks(2, body)


def test_closing_waits_for_nobody_who_waits_for_what_follows() -> None:
    """Two stores, which the ranks close in another order."""
    networks = [_core.InprocNetwork(2) for _ in range(2)]
    done = [threading.Event() for _ in range(2)]

    def rank(number: int) -> None:
        first, second = (
            KVStore("allreduce", network.connect(number, codec_threads=1), settings.read())
            for network in networks
        )
        if number == 0:
            first.close()
        second.barrier()
        second.close()
        first.close()
        done[number].set()

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    for event in done:
        await_event(event, "the end of both stores")


def test_ranks_that_are_threads_free_together_what_served_the_job_before() -> None:
    """Every new store looks whether the servers of closed ones are still needed. It was no call for several threads."""
    for _ in range(100):
        run_ranks(8, lambda store: store.init("w", np.ones(8, np.float32)))


def test_the_exit_waits_until_the_others_have_left_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_serving", {})
    network, order = _core.InprocNetwork(2), []
    waits, is_closed = threading.Event(), threading.Event()

    def rank() -> None:
        store = KVStore("allreduce", network.connect(1, codec_threads=1), settings.read())
        store.init("w", np.full(ELEMENTS, 7, np.float32))
        await_event(is_closed, "close()")
        assert_array_equal(pulled(store, "w"), np.full(ELEMENTS, 7))
        await_event(waits, "the exit")
        order.append("closed")
        store.close()

    def leave() -> None:
        waits.set()
        worker.outlast_all()
        order.append("exit")

    other = threading.Thread(target=rank, daemon=True)
    other.start()
    store = KVStore("allreduce", network.connect(0, codec_threads=1), settings.read())
    store.init("w", np.full(ELEMENTS, 7, np.float32))
    store.close()
    is_closed.set()
    ending = threading.Thread(target=leave, daemon=True)
    ending.start()
    ending.join(DEADLINE)
    other.join(DEADLINE)
    assert order == ["closed", "exit"]
    assert id(store.engine) not in worker._serving
    began = time.monotonic()
    while (
        worker._serving and time.monotonic() - began < DEADLINE
    ):  # rank 1 may close after the exit of rank 0
        worker._drop_the_ended()
        time.sleep(0.01)
    assert not worker._serving
