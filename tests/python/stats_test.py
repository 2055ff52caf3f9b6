"""kv.stats() against numbers that were computed by hand, where others than the engine's dense keys encode."""

from __future__ import annotations

from typing import Any

import gradwire as gw
import numpy as np
import pytest
from gradwire.kv import KVStore
from python.inproc_ranks import run_ranks

pytestmark = pytest.mark.usefixtures("no_job")

ELEMENTS = 64


def values(*numbers: float) -> list[Any]:
    return [np.full(ELEMENTS, number, np.float32) for number in numbers]


@pytest.mark.parametrize("name", ["local", "device"])
def test_devices_of_a_local_store_encode(name: str, stores: list[KVStore]) -> None:
    """Two devices give 0.75 and 0.25 with a threshold of 0.5: 0.25 is left of each, of 64 elements twice."""
    stores.append(store := gw.kv.create(name))
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    store.init("w", np.zeros(ELEMENTS, np.float32))
    out = np.empty(ELEMENTS, np.float32)
    store.pushpull("w", values(0.75, 0.25), out=out)
    np.testing.assert_array_equal(out, values(0.5)[0])
    stats = store.stats()
    assert (stats["bytes_raw"], stats["bytes_encoded"], stats["ratio"]) == (2 * 256, 2 * 16, 16)
    assert stats["residual_norm"] == pytest.approx((128 * 0.25**2) ** 0.5, rel=1e-12)
    assert stats["share_sent"] == pytest.approx(1 - 2 * 0.25**2 / (0.75**2 + 0.25**2), rel=1e-12)
    assert stats["codec_seconds"] > 0
    store.push("w", values(0.25)[0])  # the first device's 0.5 goes, and nothing is left of it
    store.pull("w", out)
    np.testing.assert_array_equal(out, values(0.5)[0])
    stats = store.stats()
    assert (stats["bytes_raw"], stats["bytes_encoded"]) == (3 * 256, 3 * 16)
    assert stats["residual_norm"] == pytest.approx((64 * 0.25**2) ** 0.5, rel=1e-12)


def test_a_sum_that_is_not_sent_yet_takes_nothing_from_what_was_encoded(stores: list[KVStore]) -> None:
    """push() comes back before the engine has sent the sum."""
    stores.append(store := gw.kv.create("local"))
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    store.init("w", np.zeros(ELEMENTS, np.float32))
    store.push("w", values(0.75)[0])
    early = store.devices.stats_beside(store.stats() | {"bytes_encoded": 0}, residuals=True)
    assert (early["bytes_raw"], early["bytes_encoded"], early["ratio"]) == (256, 16, 16)


def test_without_a_codec_a_local_store_counts_the_sum(stores: list[KVStore]) -> None:
    stores.append(store := gw.kv.create("local"))
    store.init("w", np.zeros(ELEMENTS, np.float32))
    store.pushpull("w", values(1, 2), out=np.empty(ELEMENTS, np.float32))
    stats = store.stats()
    assert (stats["bytes_raw"], stats["bytes_encoded"], stats["ratio"]) == (256, 256, 1)
    assert (stats["residual_norm"], stats["share_sent"]) == (0, None)


def test_rows_are_counted_with_what_is_left_of_them() -> None:
    """Each worker pushes two rows of 16 elements: 4 bytes a row in 2 bits, behind 16 bytes and one for each id."""
    stats: dict[int, dict[str, Any]] = {}

    def body(store: KVStore) -> None:
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        store.init("table", gw.RowSparse([], [], shape=(8, 16)))
        rows = np.repeat(np.array([[0.75], [0.25]], np.float32), 16, axis=1)
        store.push("table", gw.RowSparse([1, 3], rows))
        out = np.empty((2, 16), np.float32)
        store.row_sparse_pull("table", out, row_ids=[1, 3])
        np.testing.assert_array_equal(out[:, 0], [1.0, 0.0])
        stats[store.rank] = store.stats()

    run_ranks(2, body)
    for one in stats.values():
        assert (one["bytes_raw"], one["bytes_encoded"], one["ratio"]) == (128, 26, 128 / 26)
        assert one["residual_norm"] == pytest.approx((32 * 0.25**2) ** 0.5, rel=1e-12)
        assert one["share_sent"] == pytest.approx(1 - 2 * 0.25**2 / (0.75**2 + 0.25**2), rel=1e-12)
        assert one["codec_seconds"] > 0


def test_rows_and_keys_are_counted_together() -> None:
    stats: list[dict[str, Any]] = []

    def body(store: KVStore) -> None:
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        store.init("table", gw.RowSparse([], [], shape=(8, 16)))
        store.init("w", np.zeros(ELEMENTS, np.float32))
        store.push("table", gw.RowSparse([5], np.full((1, 16), 0.25, np.float32)))
        store.pushpull("w", values(0.25)[0], out=np.empty(ELEMENTS, np.float32))
        stats.append(store.stats())

    run_ranks(1, body)
    assert (stats[0]["bytes_raw"], stats[0]["bytes_encoded"]) == (64 + 256, 17 + 4 + 16)
    assert stats[0]["residual_norm"] == pytest.approx((80 * 0.25**2) ** 0.5, rel=1e-12)
    assert stats[0]["share_sent"] == 0


def test_what_is_no_longer_compressed_has_no_share_that_was_sent() -> None:
    shares: list[Any] = []

    def body(store: KVStore) -> None:
        compressed = {"type": "2bit", "threshold": 0.5}
        store.set_gradient_compression(compressed)
        store.init("table", gw.RowSparse([], [], shape=(8, 16)))
        store.init(["a", "b"], values(0, 0))
        store.push("table", gw.RowSparse([5], np.full((1, 16), 0.75, np.float32)))
        store.pushpull(["a", "b"], values(0.75, 0.25))
        shares.append(store.stats()["share_sent"])
        store.engine.set_key_compression([store.dense.ids["a"]], "none", "none")
        shares.append(store.stats()["share_sent"])
        store.set_gradient_compression({"type": "none"})
        shares.append(store.stats()["share_sent"])

    run_ranks(1, body)
    given, left = np.array([16 * 0.75**2, ELEMENTS * 0.75**2, ELEMENTS * 0.25**2]), 0.25**2
    assert shares[0] == pytest.approx(1 - (16 + 2 * ELEMENTS) * left / given.sum(), rel=1e-12)
    assert shares[1] == pytest.approx(1 - (16 + ELEMENTS) * left / (given[0] + given[2]), rel=1e-12)
    assert shares[2] is None


def test_a_local_store_that_no_longer_compresses_has_no_share(stores: list[KVStore]) -> None:
    stores.append(store := gw.kv.create("local"))
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    store.init("w", np.zeros(ELEMENTS, np.float32))
    store.push("w", values(0.75)[0])
    assert store.stats()["share_sent"] == pytest.approx(1 - 0.25**2 / 0.75**2, rel=1e-12)
    store.set_gradient_compression({"type": "none"})
    assert store.stats()["share_sent"] is None
