"""ArrayLibrary: what running operations needs of the arrays of one library, beside the store's collectives.

A module of functions is one: `horovod/torch/arrays.py` of PyTorch's tensors on the CPU, `horovod/numpy_arrays.py` of
NumPy's. Arrays are contiguous, and have `shape`, `reshape()`, slices, `+`, `*`, `/`, `//`, `<` and `dot()` besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gradwire.horovod.request import TensorSpec

_HALVES = ("float16", "bfloat16")


class ArrayLibrary(Protocol):
    """Dtypes are by name: "float32"."""

    def spec_of(self, array: Any) -> TensorSpec:
        """An array without its elements."""

    def is_floating(self, array: Any) -> bool:
        """Whether its elements are of a floating point type."""

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """A new array of zeros."""

    def empty_like(self, array: Any) -> Any:
        """A new array of any values."""

    def cast(self, array: Any, dtype: str) -> Any:
        """The array in a type: itself, where it has that; floats are cut off towards zero."""

    def copied(self, array: Any, dtype: str) -> Any:
        """A copy in a type."""

    def joined(self, arrays: Sequence[Any], out: Any = None) -> Any:
        """Arrays one behind the other along the first dimension, in out or a new one."""

    def parts(self, array: Any, rows: Sequence[int]) -> list[Any]:
        """Cuts an array along the first dimension into parts of so many rows; they are views."""

    def combined(self, op: str, one: Any, other: Any) -> Any:
        """Combines two arrays element by element: "sum", "min", "max" or "product"; NaN wins in min and max."""

    def write(self, target: Any, values: Any) -> None:
        """Writes values to a target of as many elements, in its type; nothing where both are the same memory."""

    def from_bytes(self, data: bytes) -> Any:
        """A new array of uint8, (len(data),)."""

    def to_bytes(self, array: Any) -> bytes:
        """What an array of uint8 holds."""


def near_equal(rows: int, parts: int) -> list[int]:
    """Returns how many rows each part gets, the earlier ones one more."""
    size, longer = divmod(rows, parts)
    return [size + (part < longer) for part in range(parts)]


def scaled(library: ArrayLibrary, values: Any, factor: float) -> Any:
    """Returns values times factor: integers by way of float64, half-precision ones by way of float32."""
    if factor == 1.0:
        return values
    dtype = library.spec_of(values).dtype
    wide = wide_type(dtype) if library.is_floating(values) else "float64"
    return library.cast(library.cast(values, wide) * factor, dtype)


def wide_type(dtype: str) -> str:
    """Returns the type in which values are combined: float32 for half-precision ones."""
    return "float32" if dtype in _HALVES else dtype
