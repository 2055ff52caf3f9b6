"""What a front end encodes by itself, in the store's stats(): beside what the engine encodes, and nothing twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gradwire.kv import KVStore
from gradwire.stores.encoded_outside import EncodedOutside
from python.inproc_ranks import run_ranks

pytestmark = pytest.mark.usefixtures("no_job")

ENGINE = {"bytes_raw": 256, "bytes_encoded": 16, "residual_norm": 3.0, "codec_seconds": 1.0}


class Residuals:
    """Of these squares."""

    def __init__(self, squares: float) -> None:
        self.squares, self.passes = squares, 0

    def residual_squares(self) -> float:
        self.passes += 1
        return self.squares


def test_nothing_outside_leaves_the_engines_numbers() -> None:
    assert EncodedOutside().stats_beside(ENGINE) == ENGINE | {"ratio": 16}
    nothing = ENGINE | {"bytes_raw": 0, "bytes_encoded": 0}
    assert EncodedOutside().stats_beside(nothing)["ratio"] is None


def test_sums_are_added() -> None:
    outside = EncodedOutside()
    outside.count(400, 100)
    outside.count(368, 12)
    holders = [Residuals(9.0), Residuals(7.0)]
    for holder in holders:
        outside.watch(holder)
    with outside.coding():
        np.sort(np.random.default_rng(0).random(200_000))
    found = outside.stats_beside(ENGINE)
    assert (found["bytes_raw"], found["bytes_encoded"], found["ratio"]) == (1024, 128, 8)
    assert found["residual_norm"] == 5.0
    assert 1.0 < found["codec_seconds"] < 2.0
    assert outside.bytes == (768, 112)


def test_residuals_are_read_only_where_the_engines_are() -> None:
    """None: they were not asked for, or a round is in progress."""
    outside, holder = EncodedOutside(), Residuals(9.0)
    outside.watch(holder)
    assert outside.stats_beside(ENGINE | {"residual_norm": None})["residual_norm"] is None
    assert holder.passes == 0


def test_a_holder_that_is_gone_is_forgotten() -> None:
    outside, holder = EncodedOutside(), Residuals(16.0)
    outside.watch(Residuals(100.0))
    outside.watch(holder)
    assert outside.stats_beside(ENGINE)["residual_norm"] == 5.0
    del holder
    assert outside.stats_beside(ENGINE)["residual_norm"] == 3.0


def test_a_store_counts_keys_and_sums_outside_once_each() -> None:
    stats: dict[int, list[dict[str, Any]]] = {}

    def body(store: KVStore) -> None:
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        store.init("w", np.zeros(64, np.float32))
        store.pushpull("w", np.full(64, 0.75, np.float32), out=np.empty(64, np.float32))
        store.encoded_outside.count(256, 48)
        store.encoded_outside.watch(holder)
        stats[store.rank] = [store.stats(), store.stats(residuals=False)]

    holder = Residuals(5.0)
    run_ranks(2, body)
    for whole, quick in stats.values():
        assert (whole["bytes_raw"], whole["bytes_encoded"], whole["ratio"]) == (512, 64, 8)
        assert whole["residual_norm"] == pytest.approx((64 * 0.25**2 + 5.0) ** 0.5, rel=1e-12)
        assert quick["bytes_raw"] == 512
        assert quick["residual_norm"] is None
    assert holder.passes == 2  # one of each rank


def test_rank_0_says_at_the_end_what_was_saved_outside(capfd: pytest.CaptureFixture[str]) -> None:
    run_ranks(2, lambda store: store.encoded_outside.count(160_000, 40_000))
    text = "".join(capfd.readouterr())
    assert text.count("compressed: 160 KB of gradients were sent as 40 KB, 4.0 times less") == 1, text
