"""The values that one worker's devices have for a key, added up before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from gradwire.mxnet.memory import is_plain

__all__ = ["added", "as_numbers"]


def added(arrays: Sequence[Any]) -> Any:
    """Returns the sum of NDArrays of one shape, on the first one's device; a single one is returned as it is."""
    if len(arrays) == 1:
        return arrays[0]
    if len({array.stype for array in arrays}) > 1:
        arrays = [array.tostype("default") for array in arrays]
    return mx.nd.add_n(*(array.as_in_context(arrays[0].context) for array in arrays))


def as_numbers(arrays: Sequence[Any], dtype: str) -> Any:
    """Returns the sum as a dense array on the host; added in dtype, whatever the arrays are."""
    if len(arrays) == 1:
        return _of_dtype(arrays[0], dtype)
    return added([_of_dtype(array, dtype).as_in_context(mx.cpu()) for array in arrays])


def _of_dtype(array: Any, dtype: str) -> Any:
    if array.stype != "default":
        array = array.tostype("default")
    if array.dtype != dtype:
        array = array.astype(dtype)
    return array if is_plain(array, dtype) else array.as_in_context(mx.cpu())
