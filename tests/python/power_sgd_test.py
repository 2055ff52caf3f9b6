"""PowerSGD's state, what it does with values that are not finite, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gradwire.power_sgd import PowerSGD
from numpy.testing import assert_array_equal

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
