"""NDArrays and NumPy's arrays over the same memory; nothing is copied."""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from gradwire.mxnet.errors import KVStoreError

__all__ = ["array_over", "is_on_host", "is_plain", "view_of"]


def is_on_host(array: Any) -> bool:
    """Tells whether its elements lie in the host's memory."""
    return array.context.device_type in ("cpu", "cpu_pinned", "cpu_shared")


def is_plain(array: Any, dtype: str) -> bool:
    """Tells whether gradwire can sum the array where it lies: dense, of its key's dtype, on the host."""
    return bool(array.stype == "default" and array.dtype == np.dtype(dtype) and is_on_host(array))


def view_of(array: Any) -> Any:
    """Returns an NDArray's memory as NumPy's, of its dtype and shape. The caller keeps the NDArray alive.

    Waits for nothing: to be called where MXNet has computed the array and does not change it.

    Args:
        array: dense, is_on_host().

    Raises:
        KVStoreError: MXNet holds it in a layout of oneDNN's, as convolutions' outputs are; no gradient of a weight is.
    """
    _require_rows_in_order(array)
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    dtype = np.dtype(array.dtype)
    if array.size == 0:
        return np.zeros(array.shape, dtype)
    assert address.value is not None  # only arrays without elements have none
    memory = (ctypes.c_char * (array.size * dtype.itemsize)).from_address(address.value)
    return np.frombuffer(memory, dtype).reshape(array.shape)


def _require_rows_in_order(array: Any) -> None:
    """MXNDArrayGetData would wait for oneDNN's layout to be undone, inside the operation that this waits for; exporting
    to DLPack refuses instead.
    """
    exported = ctypes.c_void_p()
    if _LIB.MXNDArrayToDLPack(array.handle, ctypes.byref(exported)) != 0:
        raise KVStoreError(
            f"a value of shape {array.shape} lies in a layout of oneDNN's, which MXNet gives to what convolutions "
            "return; hand over value.copy() + 0"
        )
    check_call(_LIB.MXNDArrayCallDLPackDeleter(exported))


def array_over(values: Any) -> Any:
    """Returns an NDArray over NumPy's memory, which it keeps alive.

    Args:
        values: contiguous, of a dtype that MXNet has; writable, and stays so.
    """
    return mx.nd.from_numpy(
        values.view(), zero_copy=True
    )  # it makes what it is given read-only: hence the view
