"""A NaN on one rank, whose values a codec compresses: every rank's sum is NaN, as without a codec, with a warning."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import gradwire as gw
import numpy as np
import pytest
from python.inproc_ranks import run_ranks

GIVEN = [np.ones(4, np.float32), np.array([1, np.nan, 3, np.inf], np.float32)]  # by rank
LOSSY = ["int8", "2bit:threshold=0.5", "topk:ratio=0.5", "1bit", "fp16"]


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The warnings so far: caught in all threads, which warnings.catch_warnings() is not for."""
    texts: list[str] = []
    lock = threading.Lock()

    def note(message: Any, category: type[Warning], **options: Any) -> None:
        assert category is RuntimeWarning
        with lock:
            texts.append(str(message))

    monkeypatch.setattr(warnings, "warn", note)
    return lambda: sorted(texts)


@pytest.mark.parametrize("codec", LOSSY)
def test_a_sum_is_nan_on_every_rank(codec: str, warned: Callable[[], list[str]]) -> None:
    def body(store: gw.kv.KVStore) -> None:
        store.init("w", np.zeros(4, np.float32))
        store.set_gradient_compression(codec)
        total = np.zeros(4, np.float32)
        for _ in range(2):
            store.pushpull("w", GIVEN[store.rank], out=total)
            assert np.isnan(total).all()
        store.pushpull("w", GIVEN[0], out=total)
        assert np.isfinite(total).all()  # and stays in no residual

    run_ranks(2, body)
    name = codec.partition(":")[0]
    assert len(warned()) == 2  # once a rank
    assert all("'w'" in text and name in text for text in warned())
    assert warned()[1].startswith("gradwire: 'w': the values of worker 1, this one")


def test_a_pull_after_a_push_brings_it_too(warned: Callable[[], list[str]]) -> None:
    def body(store: gw.kv.KVStore) -> None:
        store.init("w", np.zeros(4, np.float32))
        store.set_gradient_compression("int8")
        total = np.zeros(4, np.float32)
        store.push("w", GIVEN[store.rank])
        store.pull("w", out=total)
        assert np.isnan(total).all()

    run_ranks(2, body)
    assert len(warned()) == 2


def test_so_do_rows_of_a_table(warned: Callable[[], list[str]]) -> None:
    def body(store: gw.kv.KVStore) -> None:
        store.init("table", gw.RowSparse([], [], shape=(9, 4)))
        store.set_gradient_compression("int8")
        total = gw.RowSparse([], np.zeros((0, 4), np.float32), shape=(9, 4))
        store.pushpull("table", gw.RowSparse([store.rank], GIVEN[store.rank][None]), out=total)
        assert total.row_ids.tolist() == [0, 1]
        assert np.isnan(total.rows).all()

    run_ranks(2, body)
    assert any("worker 1, this one" in text for text in warned())


def test_weights_of_servers_stay_finite(warned: Callable[[], list[str]]) -> None:
    """As they were: the update leaves out what is not finite."""

    def body(store: gw.kv.KVStore) -> None:
        store.init("w", np.zeros(4, np.float32))
        store.set_gradient_compression("int8")
        store.set_optimizer("sgd", learning_rate=1.0)
        weight = np.zeros(4, np.float32)
        store.pushpull("w", GIVEN[store.rank], out=weight)
        assert np.isfinite(weight).all()

    run_ranks(2, body, "dist_sync")
    assert len(warned()) == 2
    assert all("update leaves these elements out" in text for text in warned())


def test_the_way_of_mxnet_is_left_as_it_is(warned: Callable[[], list[str]]) -> None:
    def body(store: gw.kv.KVStore) -> None:
        store.init("w", np.zeros(4, np.float32))
        store.set_gradient_compression("2bit:threshold=0.5,nonfinite=mxnet")
        total = np.zeros(4, np.float32)
        store.pushpull("w", GIVEN[store.rank], out=total)
        np.testing.assert_array_equal(total, [1, 0.5, 1, 1])

    run_ranks(2, body)
    assert warned() == []


def test_devices_of_one_worker_sum_as_without_a_codec(warned: Callable[[], list[str]]) -> None:
    """There each element is known."""
    store = gw.kv.create("local")
    store.init("w", np.zeros(4, np.float32))
    store.set_gradient_compression("int8")
    total = np.zeros(4, np.float32)
    store.pushpull("w", GIVEN, out=total)
    np.testing.assert_allclose(total, sum(GIVEN), rtol=0.01)
    store.pushpull("w", GIVEN[:1] * 2, out=total)
    np.testing.assert_allclose(total, GIVEN[0] * 2, rtol=0.05)
    store.close()
    assert len(warned()) == 1
    assert warned()[0].startswith("gradwire: 'w': the values of worker 0")


@pytest.mark.filterwarnings("ignore:gradwire")
def test_a_float64_beyond_float32_is_infinite_where_devices_encode() -> None:
    """As in a sum without a codec that is read as float32; it was 0."""
    store = gw.kv.create("local")
    store.init("w", np.zeros(2))
    store.set_gradient_compression("int8")
    total = np.zeros(2)
    store.pushpull("w", np.array([1e300, 1.0]), out=total)
    np.testing.assert_array_equal(total, [np.inf, 1])
    store.close()
