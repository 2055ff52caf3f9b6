"""Weights as servers send them back: what may be asked for, bits and bytes."""

from __future__ import annotations

from typing import Any

import gradwire
import numpy as np
import pytest
from gradwire.compress import Compression
from gradwire.kv import KVStore
from numpy.testing import assert_allclose, assert_array_equal
from python.inproc_ranks import run_ranks

ELEMENTS = 100_000
WORKERS = 3
WEIGHTS = (
    "fp32",
    "fp16",
    "bf16",
    "delta:int8",
    "delta:int4",
    "delta:topk:ratio=0.2",
    "delta:2bit:threshold=0.1",
)


pytestmark = pytest.mark.usefixtures("no_job")


def least_squares(weights: str, steps: int, **options: Any) -> tuple[list[Any], int, float]:
    """Trains on |weight - target|^2 / 2 with a target for each worker.

    Returns: each worker's weight; the bytes that worker 1, which serves none of so small a key, received; the largest
    distance to the mean of the targets.
    """
    targets = np.random.default_rng(1).uniform(-1, 1, (WORKERS, ELEMENTS)).astype(np.float32)
    found: list[Any] = [None] * WORKERS
    received = [0]

    def train(store: KVStore) -> None:
        store.set_gradient_compression({"type": "int8", "weights": weights})
        weight = np.zeros(ELEMENTS, np.float32)
        store.init("w", weight)
        store.set_optimizer("sgd", learning_rate=0.2, rescale_grad=1 / WORKERS)
        for _ in range(steps):
            store.pushpull("w", weight - targets[store.rank], out=weight)
        found[store.rank] = weight
        store.barrier()
        if store.rank == 1:
            received[0] = store.stats()["bytes_received"]

    run_ranks(WORKERS, train, **options)
    return found, received[0], float(np.abs(found[0] - targets.mean(axis=0)).max())


@pytest.mark.parametrize("weights", WEIGHTS)
def test_all_workers_have_the_same_bits_and_train_as_with_whole_weights(weights: str) -> None:
    found, _, distance = least_squares(weights, 60)
    for other in found[1:]:
        assert_array_equal(found[0], other)
    # 2bit moves a weight by its threshold or not at all.
    assert distance < (0.1 if weights == "delta:2bit:threshold=0.1" else 0.005)


def test_they_are_fewer_bytes() -> None:
    received = {weights: least_squares(weights, 20)[1] for weights in WEIGHTS}
    whole = 4 * ELEMENTS
    assert received["fp32"] == pytest.approx(20 * whole, rel=0.01)
    assert received["fp16"] == pytest.approx(10 * whole, rel=0.01)
    assert received["delta:int8"] == pytest.approx(whole + 19 * whole / 4, rel=0.03)  # the first is whole
    assert received["delta:2bit:threshold=0.1"] == pytest.approx(whole + 19 * whole / 16, rel=0.03)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_at_once_each_worker_is_told_what_its_weight_lacks(weights: str) -> None:
    def add(store: KVStore) -> None:
        store.set_gradient_compression({"type": "none", "weights": weights})
        store.init("w", np.zeros(1000, np.float32))
        store.set_optimizer("test", rescale_grad=0.25)
        weight = np.empty(1000, np.float32)
        for _ in range(4):
            store.push("w", np.ones(1000, np.float32))
            store.pull("w", weight)
        store.barrier()
        for _ in range(40):
            store.pull("w", weight)
        assert_allclose(weight, WORKERS * 4 * 0.25, atol=0.1 if "2bit" in weights else 1e-6)
        store.barrier()

    run_ranks(WORKERS, add, "dist_async", staleness_bound=None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2bit:threshold=0.5,weights=fp16", ("2bit:threshold=0.5,nonfinite=skip", "exact", "fp16")),
        (
            "none:weights=delta:topk:ratio=0.05,values=fp16",
            ("none", "none", "delta:topk:ratio=0.05,values=fp16,nonfinite=skip"),
        ),
        (
            {"type": "int8", "weights": "delta:int8"},
            ("int8:block=256,nonfinite=skip", "int8", "delta:int8:block=256,nonfinite=skip"),
        ),
        ("fp16", ("fp16:nonfinite=skip", "fp16", "fp32")),
    ],
)
def test_they_are_read_from_text_and_mappings(given: Any, expected: tuple[str, str, str]) -> None:
    parsed = Compression.parse(given)
    assert (parsed.spec, parsed.reply) == expected[:2]
    assert parsed.weights == expected[2]
    assert Compression.parse(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ("fp8", "valid are fp32, fp16, bf16 and delta:CODEC"),
        ("delta:none", "leaves nothing out"),
        ("delta:2bit", "give the most that a weight moves by in a round"),
        ("delta:2bit:threshold=auto", "takes its scale from the sums of rounds"),
        ("delta:1bit:threshold=0.5", "would move a weight that stands still"),
        ("delta:int9", "did you mean int"),
    ],
)
def test_what_does_not_add_up_to_a_weight_is_refused(weights: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Compression.parse({"type": "none", "weights": weights})


def test_where_no_server_sends_them_they_are_refused() -> None:
    store = gradwire.kv.create("local")
    with pytest.raises(ValueError, match=r"the store 'local' has no servers, and weights=fp16 was given"):
        store.set_gradient_compression("none:weights=fp16")
    store.close()
    pytest.importorskip("torch")
    from gradwire.torch.session import parse_compression

    with pytest.raises(ValueError, match=r"the optimizer steps on the workers, and weights=fp16 was given"):
        parse_compression("2bit:weights=fp16")
