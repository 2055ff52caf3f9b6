"""Stores whose residuals are kept in bfloat16: the numbers of compress.ErrorFeedback with residual="bf16". And stores
that keep none: the numbers of a codec alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradwire as gw
import numpy as np
import pytest
from gradwire import compress
from gradwire.kv import KVStore
from numpy.testing import assert_array_equal
from python.inproc_ranks import run_ranks

ELEMENTS = 3000


def gradient(rank: int, step: int) -> Any:
    return np.random.default_rng(100 * step + rank).standard_normal(ELEMENTS, np.float32)


class Expected:
    """What two ranks exchange, computed without a store. A sum of two float32 has one value."""

    def __init__(self, codec: str) -> None:
        self.codec = compress.make(codec)
        self.feedbacks = [compress.ErrorFeedback(self.codec, ELEMENTS, residual="bf16") for _ in range(2)]

    def sum(self, step: int) -> Any:
        payloads = [feedback.encode(gradient(rank, step)) for rank, feedback in enumerate(self.feedbacks)]
        first, second = (self.codec.decode(payload, ELEMENTS) for payload in payloads)
        return first + second


def exchanged(store: KVStore, step: int) -> Any:
    out = np.zeros(ELEMENTS, np.float32)
    store.pushpull("w", gradient(store.rank, step), out=out)
    return out


@pytest.mark.parametrize("codec", ["int8", "fp16", "2bit:threshold=0.5", "topk:ratio=0.1"])
def test_sums_and_residuals_are_those_of_error_feedback(codec: str) -> None:
    expected = Expected(codec)
    sums = [expected.sum(step) for step in range(6)]

    def body(store: KVStore) -> None:
        store.init("w", np.zeros(ELEMENTS, np.float32))
        store.set_gradient_compression(f"{codec}{',' if ':' in codec else ':'}reply=fp32")
        for step, total in enumerate(sums):
            assert_array_equal(exchanged(store, step), total)
        assert_array_equal(store.engine.residual(0), expected.feedbacks[store.rank].residual)

    run_ranks(2, body, residual_dtype="bfloat16")


@pytest.mark.parametrize("later", ["bfloat16", "float32"])
def test_checkpoints_keep_them_whatever_dtype_the_next_job_has(later: str, tmp_path: Path) -> None:
    expected = Expected("int8")
    sums = [expected.sum(step) for step in range(4)]
    kept: dict[int, Any] = {}

    def before(store: KVStore) -> None:
        store.init("w", np.zeros(ELEMENTS, np.float32))
        store.set_gradient_compression("int8:reply=fp32")
        for step in range(3):
            exchanged(store, step)
        kept[store.rank] = store.engine.residual(0)
        store.save_checkpoint(tmp_path)

    def after(store: KVStore) -> None:
        store.init("w", np.zeros(ELEMENTS, np.float32))
        store.set_gradient_compression("int8:reply=fp32")
        store.load_checkpoint(tmp_path)
        assert_array_equal(store.engine.residual(0), kept[store.rank])
        assert_array_equal(exchanged(store, 3), sums[3])

    run_ranks(2, before, residual_dtype="bfloat16")
    run_ranks(2, after, residual_dtype=later)


def test_what_is_left_goes_with_the_first_gradient_of_codec_none() -> None:
    def body(store: KVStore) -> None:
        store.init("w", np.zeros(2, np.float32))
        store.set_gradient_compression("2bit:threshold=0.5")
        out = np.zeros(2, np.float32)
        store.pushpull("w", np.array([3, 0.25], np.float32), out=out)
        store.set_gradient_compression("none")
        store.pushpull("w", np.array([0, 1], np.float32), out=out)
        assert_array_equal(out, [2.5 * 2, 1.25 * 2])
        assert store.stats()["residual_norm"] == 0

    run_ranks(2, body, residual_dtype="bfloat16")


@pytest.mark.parametrize(
    "codec", ["int8", "fp16", "2bit:threshold=auto", "topk:ratio=0.1", "randomk:ratio=0.1"]
)
def test_without_residuals_sums_are_those_of_the_codec_alone(codec: str, tmp_path: Path) -> None:
    alone = compress.make(codec)

    def expected(step: int, scales: Any) -> tuple[Any, Any]:
        payloads = [
            alone.encode(gradient(rank, step), rank=rank, step=step, scales=scales) for rank in range(2)
        ]
        reply = alone.encode_reply(payloads, ELEMENTS, reply="fp32")
        return alone.decode_reply(reply, 2, ELEMENTS, reply="fp32")

    sums, scales = [], None
    for step in range(5):
        total, scales = expected(step, scales)
        sums.append(total)

    def began(store: KVStore) -> None:
        store.init("w", np.zeros(ELEMENTS, np.float32))
        store.set_gradient_compression(f"{codec}{',' if ':' in codec else ':'}reply=fp32")

    def before(store: KVStore) -> None:
        began(store)
        for step in range(4):
            assert_array_equal(exchanged(store, step), sums[step])
        assert store.engine.residual(0).size == 0
        stats = store.stats()
        assert (stats["residual_norm"], stats["share_sent"]) == (0, None)
        store.save_checkpoint(tmp_path)

    def after(store: KVStore) -> None:
        began(store)
        store.load_checkpoint(tmp_path)
        assert_array_equal(exchanged(store, 4), sums[4])

    run_ranks(2, before, residual_dtype="none")
    run_ranks(2, after, residual_dtype="none")


def test_residuals_of_a_checkpoint_are_left_out_without_them(tmp_path: Path) -> None:
    codec = compress.make("int8")

    def before(store: KVStore) -> None:
        store.init("w", np.zeros(ELEMENTS, np.float32))
        store.set_gradient_compression("int8:reply=fp32")
        exchanged(store, 0)
        store.save_checkpoint(tmp_path)

    def after(store: KVStore) -> None:
        store.init("w", np.zeros(ELEMENTS, np.float32))
        store.set_gradient_compression("int8:reply=fp32")
        store.load_checkpoint(tmp_path)
        first, second = (codec.decode(codec.encode(gradient(rank, 1)), ELEMENTS) for rank in range(2))
        assert_array_equal(exchanged(store, 1), first + second)

    run_ranks(2, before)
    run_ranks(2, after, residual_dtype="none")


def test_another_dtype_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_RESIDUAL_DTYPE", "float16")
    with pytest.raises(ValueError, match=r"GRADWIRE_RESIDUAL_DTYPE.*float16.*float32.*bfloat16.*none"):
        gw.kv.create("local")


@pytest.mark.parametrize("wrong", ["float16", "float64"])
def test_an_engine_refuses_it_too(wrong: str) -> None:
    with pytest.raises(ValueError, match=f"residual_type={wrong}, expected float32, bfloat16 or none"):
        run_ranks(1, lambda store: None, residual_dtype=wrong)
