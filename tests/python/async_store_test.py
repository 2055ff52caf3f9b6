"""dist_async: what it refuses and in which words, its bound, and how stale pushes were."""

from __future__ import annotations

import threading
from typing import Any

import gradwire
import gradwire.torch
import numpy as np
import pytest
import torch
from gradwire.kv import KVStore
from numpy.testing import assert_array_equal
from python.inproc_ranks import await_event, run_ranks

ASYNC = ("dist_async", "dist_async_device", "dist_device_async")


pytestmark = pytest.mark.usefixtures("no_job")


def weight(store: KVStore) -> None:
    store.init("w", np.zeros(4, np.float32))
    store.set_optimizer("test", rescale_grad=1)


def added(store: KVStore, value: float) -> Any:
    out = np.full(4, value, np.float32)
    store.pushpull("w", out)
    return out


@pytest.mark.parametrize("name", ASYNC)
def test_outside_a_job_it_says_how_to_start_one(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"kv.create\('{name}'\): GRADWIRE_SCHEDULER is not set.*gradwire run"
    ):
        gradwire.kv.create(name)


@pytest.mark.parametrize("given", [-1, 1.5, "4", True])
def test_a_staleness_that_is_no_number_of_steps(given: Any) -> None:
    with pytest.raises(ValueError, match="expected a whole number, 0 or more"):
        gradwire.kv.create("dist_async", staleness=given)


def test_a_staleness_that_nobody_counts_to() -> None:
    with pytest.raises(ValueError, match=f"staleness={2**64}, expected at most {2**63 - 1}"):
        gradwire.kv.create("dist_async", staleness=2**64)


@pytest.mark.parametrize("name", ["local", "dist_sync", "allreduce", "torch"])
def test_a_staleness_for_a_store_that_sums(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"no worker is ahead of another.*use one of dist_async, dist_async_device"
    ):
        gradwire.kv.create(name, staleness=4)


def test_a_bad_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_STALENESS_BOUND", "-1")
    with pytest.raises(ValueError, match="GRADWIRE_STALENESS_BOUND"):
        gradwire.kv.create("dist_async")


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("GRADWIRE_HIERARCHY", "host", "each worker's push is applied by itself"),
        ("GRADWIRE_PLACEMENT", "auto", "servers apply each push to the weights"),
    ],
)
def test_settings_that_do_not_go_with_it(
    variable: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"{reason}.*'dist_sync'"):
        gradwire.kv.create("dist_async")


@pytest.mark.parametrize(
    ("given", "near"), [("dist_asynch", "dist_async"), ("p33", "p3"), ("bytesp", "byteps"), ("dits", "dist")]
)
def test_a_name_that_is_misspelt(given: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{near}'"):
        gradwire.kv.create(given)


def test_the_first_push_without_an_optimizer_is_refused_on_every_worker() -> None:
    refused: list[str] = []

    def body(store: KVStore) -> None:
        store.init("w", np.zeros(4, np.float32))
        for call in (store.push, store.pushpull):
            with pytest.raises(
                ValueError, match=r"no optimizer.*call set_optimizer on every worker first"
            ) as error:
                call("w", np.ones(4, np.float32))
            refused.append(str(error.value))
        store.barrier()

    run_ranks(3, body, "dist_async", staleness_bound=None)
    assert len(refused) == 6


def test_nobody_waits_and_stats_tell_how_stale_pushes_were() -> None:
    first_is_done, stats = threading.Event(), {}

    def body(store: KVStore) -> None:
        weight(store)
        if store.rank == 0:
            for step in range(5):
                assert_array_equal(added(store, 1), np.full(4, step + 1))
            first_is_done.set()
        else:
            await_event(first_is_done, "five pushes of rank 0")
            assert_array_equal(added(store, 1), np.full(4, 6))
            assert_array_equal(added(store, 1), np.full(4, 7))
        stats[store.rank] = store.stats()["staleness"]

    run_ranks(2, body, "dist_async", staleness_bound=None)
    assert stats == {0: {0: 5}, 1: {5: 1, 0: 1}}


def test_with_a_bound_the_fast_worker_waits() -> None:
    began, order = threading.Event(), []

    def body(store: KVStore) -> None:
        weight(store)
        if store.rank == 0:
            added(store, 1)
            began.set()
            added(store, 1)  # the second: two ahead
            order.append("two ahead")
        else:
            await_event(began, "the first push of rank 0")
            order.append("pushes")
            added(store, 1)
        store.barrier()

    run_ranks(2, body, "dist_async", staleness_bound=1)
    assert order == ["pushes", "two ahead"]


def rows_of(store: KVStore, *ids: int) -> Any:
    out = np.full((len(ids), 2), np.nan, np.float32)
    store.row_sparse_pull("table", out, row_ids=ids)
    return out


def ones(*ids: int) -> gradwire.RowSparse:
    return gradwire.RowSparse(ids, np.ones((len(ids), 2), np.float32))


def table(store: KVStore) -> None:
    store.init("table", gradwire.RowSparse([7], np.full((1, 2), 5, np.float32), (10, 2)))
    with pytest.raises(ValueError, match=r"no optimizer.*call set_optimizer on every worker first"):
        store.push("table", ones(7))
    store.set_optimizer("test", rescale_grad=1)


def test_rows_are_applied_when_they_come() -> None:
    first_is_done, stats = threading.Event(), {}

    def body(store: KVStore) -> None:
        table(store)
        if store.rank == 0:
            for step in range(3):
                store.push("table", ones(7, 2, 2))
                assert_array_equal(rows_of(store, 2, 7, 9)[:, 0], [2 * (step + 1), 5 + step + 1, 0])
            first_is_done.set()
        else:
            await_event(first_is_done, "three pushes of rank 0")
            pushed = ones(9, 7)
            store.pushpull("table", pushed)
            assert_array_equal(pushed.row_ids, [7, 9])  # those that were given, as they are now
            assert_array_equal(pushed.rows[:, 0], [9, 1])
        stats[store.rank] = store.stats()["staleness"]
        store.barrier()
        assert_array_equal(rows_of(store, 2, 7, 9)[:, 0], [6, 9, 1])

    run_ranks(2, body, "dist_async", staleness_bound=None)
    assert stats == {0: {0: 3}, 1: {3: 1}}


def test_with_a_bound_the_fast_worker_waits_for_its_rows() -> None:
    began, order = threading.Event(), []

    def body(store: KVStore) -> None:
        table(store)
        if store.rank == 0:
            store.push("table", ones(1))
            rows_of(store, 1)
            store.push("table", ones(1))  # the second: two ahead
            began.set()
            rows_of(store, 1)
            order.append("two ahead")
        else:
            await_event(began, "two pushes of rank 0")
            order.append("pushes")
            store.push("table", ones())
        store.barrier()

    run_ranks(2, body, "dist_async", staleness_bound=1)
    assert order == ["pushes", "two ahead"]


def test_a_store_that_sums_has_no_stale_pushes() -> None:
    store = gradwire.kv.create("local")
    store.init("w", np.zeros(4, np.float32))
    store.pushpull("w", np.ones(4, np.float32))
    assert store.stats()["staleness"] == {}
    store.close()


def test_an_agreed_threshold_is_refused() -> None:
    def body(store: KVStore) -> None:
        with pytest.raises(ValueError, match=r"there are none; give a threshold, as 2bit:threshold=0\.5"):
            store.set_gradient_compression("2bit:threshold=auto")
        store.set_gradient_compression("2bit:threshold=0.5")

    run_ranks(2, body, "dist_async", staleness_bound=None)


def test_torchs_optimizer_is_told_that_there_are_no_sums() -> None:
    def body(store: KVStore) -> None:
        model = torch.nn.Linear(2, 1)
        with pytest.raises(ValueError, match="'dist_async' apply each gradient to the weights"):
            gradwire.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), store=store)

    run_ranks(1, body, "dist_async", staleness_bound=None)


def test_an_agreed_threshold_does_not_go_with_an_optimizer_on_servers() -> None:
    """Its scales come with sums: with weights for answers, every round after the first sent nothing."""

    def body(store: KVStore) -> None:
        store.set_gradient_compression("2bit:threshold=auto")
        store.init("w", np.zeros(4, np.float32))
        with pytest.raises(ValueError, match=r"set_optimizer: 2bit:threshold=auto.*give a threshold"):
            store.set_optimizer("test", rescale_grad=1)
        store.set_gradient_compression("2bit:threshold=0.5")
        store.set_optimizer("test", rescale_grad=1)
        with pytest.raises(ValueError, match="set_gradient_compression: 2bit:threshold=auto"):
            store.set_gradient_compression("2bit:threshold=auto")
        for step in range(3):
            assert_array_equal(added(store, 0.5), np.full(4, step + 1))

    run_ranks(2, body)
