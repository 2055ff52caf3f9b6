"""An array that is nothing but DLPack: what a framework is that this project has never heard of."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CPU, CUDA = 1, 2  # DLPack's kDLCPU and kDLCUDA

_CODES = {"i": 0, "u": 1, "f": 2}


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor of dlpack.h."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", _Deleter))

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class DlpackArray:
    """Shows NumPy's memory by DLPack alone, on a device of one's choice.

    Attributes:
        released: how often a consumer has let go of the memory.
    """

    def __init__(self, array: np.ndarray[Any, Any], device_type: int = CPU) -> None:
        self._array = array
        self._device_type = device_type
        self.released = 0
        self._exports: list[_Managed] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device_type, 0

    def __dlpack__(self, **_: Any) -> Any:
        array, ndim = self._array, self._array.ndim
        longs = ctypes.c_int64 * ndim
        tensor = _Tensor(
            data=array.ctypes.data,
            device_type=self._device_type,
            ndim=ndim,
            code=_CODES[array.dtype.kind],
            bits=8 * array.itemsize,
            lanes=1,
            shape=longs(*array.shape),
            strides=longs(*(stride // array.itemsize for stride in array.strides)),
        )
        managed = _Managed(tensor, None, _Deleter(self._release))
        self._exports.append(managed)
        return _new_capsule(ctypes.addressof(managed), b"dltensor", None)

    def _release(self, _: Any) -> None:
        self.released += 1
