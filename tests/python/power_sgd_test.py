"""PowerSGD's state, what it does with values that are not finite, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gradwire.kv import KVStore
from gradwire.power_sgd import PowerSGD
from numpy.testing import assert_array_equal
from python.inproc_ranks import run_ranks

SHAPE = (30, 40)


def gradient(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


def test_nothing_is_lost_between_what_arrives_and_what_is_owed(local_store: Any) -> None:
    power = PowerSGD(local_store, [SHAPE], rank=2)
    given, arrived = np.zeros(SHAPE), np.zeros(SHAPE)
    for step in range(20):
        own = gradient(step)
        given += own
        assert power.all_reduce([own])
        assert np.linalg.matrix_rank(own, tol=1e-4) == 2
        arrived += own
    np.testing.assert_allclose(arrived + power.state_dict()["errors"][0], given, atol=1e-4)


def test_objects_are_counted_by_store(local_store: Any) -> None:
    """Not by process: one rank may have made more of them than another, for other stores."""

    def body(store: KVStore) -> None:
        if store.rank == 0:
            PowerSGD(local_store, [SHAPE])
        assert PowerSGD(store, [SHAPE]).all_reduce([gradient(store.rank)])

    run_ranks(2, body)


def test_factors_travel_as_they_are_in_a_store_that_compresses_later() -> None:
    def body(store: KVStore) -> None:
        powers = [PowerSGD(store, [SHAPE, (5,)], rank=2) for _ in range(2)]
        found = []
        for power in powers:
            given = [gradient(store.rank), np.full(5, 0.1, np.float32)]
            assert power.all_reduce(given)
            found.append(given)
            store.set_gradient_compression("2bit:threshold=8")
        for as_before, later in zip(*found, strict=True):
            assert_array_equal(as_before, later)

    run_ranks(2, body)


def test_a_store_whose_servers_have_an_optimizer_is_refused() -> None:
    """It would fail the job in the first step."""

    def body(store: KVStore) -> None:
        power = PowerSGD(store, [SHAPE])
        store.set_optimizer("sgd")
        with pytest.raises(ValueError, match=r"set_optimizer\(\) was called on the store"):
            power.all_reduce([gradient(0)])
        with pytest.raises(ValueError, match=r"set_optimizer\(\) was called on the store"):
            PowerSGD(store, [SHAPE])
        store.barrier()

    run_ranks(2, body)


def test_tensors_are_written_in_place(local_store: Any) -> None:
    power, other = PowerSGD(local_store, [SHAPE, (5,)], rank=1), PowerSGD(local_store, [SHAPE, (5,)], rank=1)
    arrays = [gradient(1), np.ones(5, np.float32)]
    tensors = [torch.from_numpy(array.copy()) for array in arrays]
    strided = [torch.from_numpy(gradient(1).T.copy()).t(), tensors[1].clone()]
    assert power.all_reduce(arrays)
    assert other.all_reduce(tensors)
    assert_array_equal(arrays[0], tensors[0].numpy())
    third = PowerSGD(local_store, [SHAPE, (5,)], rank=1)
    assert third.all_reduce(strided)
    assert_array_equal(arrays[0], strided[0].numpy())


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", [0, 1])
def test_a_step_that_is_not_finite_leaves_no_trace(local_store: Any, value: float, where: int) -> None:
    power, clean = (PowerSGD(local_store, [SHAPE, (5,)], rank=2) for _ in range(2))
    for step in range(3):
        if step == 1:
            bad = [gradient(9), np.ones(5, np.float32)]
            bad[where].reshape(-1)[3] = value
            assert not power.all_reduce(bad)
            assert all(np.isnan(array).all() for array in bad)
        own, expected = [gradient(step), np.ones(5, np.float32)], [gradient(step), np.ones(5, np.float32)]
        assert power.all_reduce(own)
        assert clean.all_reduce(expected)
        assert_array_equal(own[0], expected[0])


def test_a_saved_state_goes_on_with_the_same_bits(local_store: Any) -> None:
    power, other = PowerSGD(local_store, [SHAPE], rank=2), PowerSGD(local_store, [SHAPE], rank=2, seed=5)
    power.all_reduce([gradient(1)])
    other.load_state_dict(power.state_dict())
    own, expected = gradient(2), gradient(2)
    power.all_reduce([expected])
    other.all_reduce([own])
    assert_array_equal(own, expected)
    with pytest.raises(ValueError, match="expected"):
        PowerSGD(local_store, [SHAPE], rank=3).load_state_dict(power.state_dict())


@pytest.mark.parametrize(
    ("shapes", "options", "reason"),
    [
        ([SHAPE], {"rank": 0}, "rank=0"),
        ([SHAPE], {"rank": 1.5}, "rank=1.5"),
        ([SHAPE], {"min_rate": 0}, "min_rate"),
        ([], {}, "at least one"),
        ([(3, 0)], {}, "with elements"),
    ],
)
def test_arguments_out_of_range(local_store: Any, shapes: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PowerSGD(local_store, shapes, **options)


def test_gradients_that_it_cannot_take(local_store: Any) -> None:
    power = PowerSGD(local_store, [SHAPE])
    read_only = gradient(1)
    read_only.flags.writeable = False
    for wrong in (
        gradient(1).astype(np.float64),
        gradient(1).T,
        read_only,
        torch.zeros(SHAPE).bfloat16(),
        [1.0],
    ):
        with pytest.raises(ValueError, match="gradient 0 is"):
            power.all_reduce([wrong])
    with pytest.raises(ValueError, match="2 gradients given, expected 1"):
        power.all_reduce([gradient(1), gradient(1)])


def test_only_vectors_travel_as_they_are(local_store: Any) -> None:
    power = PowerSGD(local_store, [(9,)])
    own = np.arange(9, dtype=np.float32)
    assert power.all_reduce([own])
    assert_array_equal(own, np.arange(9))
    assert (power.compressed, power.elements_sent) == ([], 9)


def test_a_step_without_a_gradient_is_not_the_last(local_store: Any) -> None:
    """Rows of zeros too, which the directions of no gradient at all would have led to."""
    power = PowerSGD(local_store, [SHAPE], rank=2)
    true = gradient(9)
    true[:2] = 0
    assert power.all_reduce([np.zeros(SHAPE, np.float32)])
    arrived = deliver(power, [true] * 60)
    assert np.linalg.norm(arrived - 60 * true) < 20 * np.linalg.norm(true)


def deliver(power: PowerSGD, gradients: list[np.ndarray]) -> np.ndarray:
    arrived = np.zeros(gradients[0].shape)
    for given in gradients:
        own = given.astype(np.float32)
        assert power.all_reduce([own])
        arrived += own
    return arrived


def low_rank(columns: int) -> np.ndarray:
    rng = np.random.default_rng(columns)
    product = rng.normal(size=(SHAPE[0], columns)) @ rng.normal(size=(columns, SHAPE[1]))
    return product.astype(np.float32)


def padded(axis: int) -> np.ndarray:
    """Zeros wherever the first unit vectors point."""
    matrix = gradient(5)
    matrix[(slice(6),) if axis == 0 else (slice(None), slice(6))] = 0
    return matrix


DEFICIENT = {
    "rank 1": low_rank(1),
    "rank 3": low_rank(3),
    "one element": np.eye(*SHAPE, dtype=np.float32) * (np.arange(SHAPE[1]) == 3),
    "constant": np.full(SHAPE, 0.7, np.float32),
    "two equal columns": low_rank(2)[:, np.arange(SHAPE[1]) % 2],
}


@pytest.mark.parametrize("rank", [1, 2, 4, 30])
@pytest.mark.parametrize("kind", DEFICIENT)
def test_matrices_of_a_lower_rank_arrive(local_store: Any, kind: str, rank: int) -> None:
    true = DEFICIENT[kind]
    power = PowerSGD(local_store, [SHAPE], rank=rank, min_rate=0.1)
    arrived = deliver(power, [true] * 20)
    assert power.residual_norm() < 6 * np.linalg.norm(true)
    np.testing.assert_allclose(
        arrived + power.state_dict()["errors"][0], 20 * true, atol=1e-4 * np.abs(20 * true).max()
    )
    if np.linalg.matrix_rank(true) <= rank:
        assert power.residual_norm() < 1e-4 * np.linalg.norm(true)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("steps", [1, 5])
def test_gradients_that_come_and_go_arrive(local_store: Any, axis: int, steps: int) -> None:
    true = padded(axis)
    power = PowerSGD(local_store, [SHAPE], rank=2)
    given = [true * np.float32(step // steps % 2) for step in range(80)]
    deliver(power, given)
    assert power.residual_norm() < 20 * np.linalg.norm(true)


def test_another_matrix_after_one_of_rank_1_arrives(local_store: Any) -> None:
    power = PowerSGD(local_store, [SHAPE], rank=2)
    deliver(power, [low_rank(1)] * 10)
    other = low_rank(2)
    deliver(power, [other] * 10)
    assert power.residual_norm() < 1e-2 * np.linalg.norm(other)


@pytest.mark.parametrize("size", [1e-37, 1e-30, 1e-19, 1e18, 1e30])
def test_the_size_of_gradients_does_not_matter(local_store: Any, size: float) -> None:
    power, other = PowerSGD(local_store, [SHAPE], rank=2), PowerSGD(local_store, [SHAPE], rank=2)
    for step in range(4):
        own = (gradient(step) * np.float64(size)).astype(np.float32)
        expected = gradient(step)
        assert power.all_reduce([own])
        assert other.all_reduce([expected])
        np.testing.assert_allclose(own.astype(np.float64) / size, expected, atol=2e-4)


def test_a_basis_of_zeros_in_a_state_comes_to_life(local_store: Any) -> None:
    """As files hold it that were saved after a step without a gradient."""
    power = PowerSGD(local_store, [SHAPE], rank=2)
    state = power.state_dict()
    state["bases"][0][...] = 0
    power.load_state_dict(state)
    true = low_rank(2)
    true[:2] = 0
    deliver(power, [true] * 3)
    assert power.residual_norm() < 1e-4 * np.linalg.norm(true)


def test_a_basis_of_another_length_in_a_state_spans_the_same(local_store: Any) -> None:
    """Bases were the bare q, as long as gradients are, in files of earlier versions."""
    power, other = PowerSGD(local_store, [SHAPE], rank=2), PowerSGD(local_store, [SHAPE], rank=2)
    deliver(power, [gradient(1)])
    state = power.state_dict()
    state["bases"][0] *= np.array([1e-12, 3e12], np.float32)
    other.load_state_dict(state)
    own, expected = [gradient(2)], [gradient(2)]
    assert other.all_reduce(own)
    assert power.all_reduce(expected)
    np.testing.assert_allclose(own[0], expected[0], atol=1e-5)


@pytest.mark.parametrize("name", ["errors", "bases"])
def test_a_state_that_is_not_finite_is_refused_whole(local_store: Any, name: str) -> None:
    power = PowerSGD(local_store, [SHAPE], rank=2)
    state = power.state_dict()
    before = power.state_dict()
    state[name][0][0, 0] = np.nan
    with pytest.raises(ValueError, match=f"the state's {name} of gradient 0 are not all finite"):
        power.load_state_dict(state)
    for kind in before:
        assert_array_equal(power.state_dict()[kind][0], before[kind][0])
