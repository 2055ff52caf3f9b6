"""The array libraries that Horovod's operations run on: NumPy's and PyTorch's do the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gradwire.horovod import numpy_arrays
from gradwire.horovod.adasum import adasum
from gradwire.horovod.array_library import ArrayLibrary, near_equal, scaled, wide_type
from gradwire.horovod.request import TensorSpec
from gradwire.horovod.torch import arrays

LIBRARIES = [
    pytest.param(numpy_arrays, np.asarray, id="numpy"),
    pytest.param(arrays, torch.from_numpy, id="torch"),
]
library_and_maker = pytest.mark.parametrize(("library", "make"), LIBRARIES)


def same(array: Any, expected: Any) -> None:
    expected = np.asarray(expected)
    found = np.asarray(array)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)


@library_and_maker
def test_arrays_are_made_cut_and_joined(library: ArrayLibrary, make: Any) -> None:
    values = np.arange(10, dtype=np.int32).reshape(5, 2)
    array = make(values.copy())
    assert library.spec_of(array) == TensorSpec("int32", (5, 2))
    same(library.zeros((2, 0), "float16"), np.zeros((2, 0), np.float16))
    assert library.spec_of(library.empty_like(array)) == library.spec_of(array)
    parts = library.parts(array, [2, 0, 3])
    same(parts[2], values[2:])
    parts[0][:] = 7  # a view
    same(array[:2], np.full((2, 2), 7, np.int32))
    same(library.joined(parts), np.asarray(array))
    out = library.zeros((5, 2), "int32")
    assert library.joined(parts, out) is out
    same(out, np.asarray(array))


@library_and_maker
def test_types_change_and_memory_is_written(library: ArrayLibrary, make: Any) -> None:
    array = make(np.array([1.75, -1.75], np.float32))
    same(library.cast(array, "int32"), np.array([1, -1], np.int32))
    kept, copy = library.cast(array, "float32"), library.copied(array, "float32")
    target = library.zeros((2, 1), "int64")
    library.write(target, array)
    same(target, np.array([[1], [-1]], np.int64))
    library.write(array, array)
    array[0] = 9
    assert (float(kept[0]), float(copy[0])) == (9.0, 1.75)
    assert library.is_floating(array)
    assert not library.is_floating(target)
    assert library.to_bytes(library.from_bytes(b"\x00\xff")) == b"\x00\xff"


@library_and_maker
@pytest.mark.parametrize(("op", "expected"), [("sum", 7.0), ("min", 2.0), ("max", 5.0), ("product", 10.0)])
def test_arrays_are_combined(library: ArrayLibrary, make: Any, op: str, expected: float) -> None:
    one, other = (make(np.array([value, np.nan], np.float32)) for value in (2, 5))
    same(library.combined(op, one, other), np.array([expected, np.nan], np.float32))


@library_and_maker
def test_factors_of_halves_and_integers_go_by_way_of_wider_types(library: ArrayLibrary, make: Any) -> None:
    big = 2**53 - 1  # that float64 holds, and float32 does not
    same(scaled(library, make(np.array([big, -7], np.int64)), 0.5), np.array([big // 2, -3], np.int64))
    half = make(np.array([3.0], np.float16))
    same(scaled(library, half, 1 / 3), np.array([np.float32(3) * np.float32(1 / 3)], np.float16))
    assert [wide_type(dtype) for dtype in ("bfloat16", "float64", "int8")] == ["float32", "float64", "int8"]
    assert scaled(library, half, 1.0) is half


@library_and_maker
def test_adasum_of_equal_gradients_is_one_of_them_and_of_orthogonal_ones_the_sum(
    library: ArrayLibrary, make: Any
) -> None:
    east, north = (make(np.array(values, np.float32)) for values in ([2, 0], [0, 3]))
    same(adasum(library, [east, east]), np.array([2, 0], np.float32))
    same(adasum(library, [east, north]), np.array([2, 3], np.float32))


@pytest.mark.parametrize("rows", range(8))
def test_rows_are_shared_out_as_numpy_does(rows: int) -> None:
    assert near_equal(rows, 3) == [len(part) for part in np.array_split(np.arange(rows), 3)]


@pytest.mark.parametrize(
    ("dtype", "size"), [("uint8", 1), ("int64", 8), ("float16", 2), ("bfloat16", 2), ("float64", 8)]
)
def test_bytes_of_a_spec(dtype: str, size: int) -> None:
    spec = TensorSpec(dtype, (3, 2))
    assert spec.bytes == 6 * size
    assert spec.is_floating == ("float" in dtype)
