"""The values that one worker's devices have for a key, added up before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from gradwire.mxnet.memory import is_plain

__all__ = ["added", "as_floats"]


def added(arrays: Sequence[Any]) -> Any:
    """Returns the sum of NDArrays of one shape, on the first one's device; a single one is returned as it is."""
    if len(arrays) == 1:
        return arrays[0]
    if len({array.stype for array in arrays}) > 1:
        arrays = [array.tostype("default") for array in arrays]
    return mx.nd.add_n(*(array.as_in_context(arrays[0].context) for array in arrays))


def as_floats(arrays: Sequence[Any]) -> Any:
    """Returns the sum as dense float32 on the host; added in float32, whatever the arrays are."""
    if len(arrays) == 1:
        return _float(arrays[0])
    return added([_float(array).as_in_context(mx.cpu()) for array in arrays])


def _float(array: Any) -> Any:
    if array.stype != "default":
        array = array.tostype("default")
    if array.dtype != "float32":
        array = array.astype("float32")
    return array if is_plain(array) else array.as_in_context(mx.cpu())
