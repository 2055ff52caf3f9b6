"""NumPy's arrays as an ArrayLibrary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwire.horovod.request import TensorSpec

_COMBINE: dict[str, Any] = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}


def spec_of(array: Any) -> TensorSpec:
    return TensorSpec(str(array.dtype), tuple(array.shape))


def is_floating(array: Any) -> bool:
    return bool(np.issubdtype(array.dtype, np.floating))


def zeros(shape: Sequence[int], dtype: str) -> Any:
    return np.zeros(tuple(shape), dtype)


def empty_like(array: Any) -> Any:
    return np.empty_like(array)


def cast(array: Any, dtype: str) -> Any:
    return array.astype(dtype, copy=False)


def copied(array: Any, dtype: str) -> Any:
    return array.astype(dtype)


def joined(arrays: Sequence[Any], out: Any = None) -> Any:
    return np.concatenate(arrays, out=out)


def parts(array: Any, rows: Sequence[int]) -> list[Any]:
    return np.split(array, np.cumsum(rows)[:-1])


def combined(op: str, one: Any, other: Any) -> Any:
    return _COMBINE[op](one, other)


def write(target: Any, values: Any) -> None:
    if values.ctypes.data != target.ctypes.data or values.dtype != target.dtype:
        np.copyto(target, values.reshape(target.shape), casting="unsafe")


def from_bytes(data: bytes) -> Any:
    return np.frombuffer(bytearray(data), np.uint8)


def to_bytes(array: Any) -> bytes:
    raw: bytes = array.tobytes()
    return raw
