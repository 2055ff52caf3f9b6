"""Arrays that calls on a store are given, NumPy's or PyTorch's: those that are sent, and those that are written to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwire.devices import is_on_device
from gradwire.keys import Key

DTYPES = ("float32", "float16", "bfloat16", "float64")


class Target:
    """Where a pull writes: the caller's own memory, or a float32 array that is copied out at the end."""

    def __init__(self, verb: str, key: Key, out: Any, may_be_on_device: bool) -> None:
        self._outs = [_out(verb, key, item) for item in (out if isinstance(out, list | tuple) else [out])]
        expect_one_shape(f"{verb}: the outs of key {key!r}", self._outs)
        first = self._outs[0]
        if _is_plain(first) and (may_be_on_device or not is_on_device(first)):
            self.array, self._copies = first, self._outs[1:]
        else:
            self._receive_on_host()

    def _receive_on_host(self) -> None:
        self.array, self._copies = np.empty(tuple(self._outs[0].shape), dtype=np.float32), self._outs

    def meet(self, value: Any) -> Any:
        """Returns the value where the engine can take both: on one device, or else both on the host."""
        if is_on_device(value) and is_on_device(self.array) and value.device == self.array.device:
            return value
        if is_on_device(self.array):
            self._receive_on_host()
        return value.cpu() if is_on_device(value) else value

    def deliver(self) -> None:
        """Copies what has arrived to those outs that could not be written to directly."""
        for item in self._copies:
            if isinstance(item, np.ndarray):
                item[...] = np.asarray(self.array)
            else:
                item.copy_(_like(item, self.array))


def floats_of(verb: str, key: Key, value: Any, may_be_on_device: bool = False) -> Any:
    """Returns a value as the engine takes it: float32, contiguous; on the host, unless it may stay on its device."""
    if not hasattr(value, "dtype"):
        raise TypeError(
            f"{verb}: the value of key {key!r} is a {type(value).__name__}, expected a NumPy or PyTorch array"
        )
    if dtype_of(value) not in DTYPES:
        raise ValueError(
            f"{verb}: the value of key {key!r} has dtype {dtype_of(value)}, expected one of {', '.join(DTYPES)}"
        )
    plain = np.asarray(value) if isinstance(value, np.generic) else _detached(value)
    if isinstance(plain, np.ndarray):
        return plain if _is_plain(plain) else np.asarray(plain, dtype=np.float32, order="C")
    here = plain if may_be_on_device else plain.cpu()
    return here.float().contiguous()


def expect_one_shape(what: str, arrays: Sequence[Any]) -> None:
    """Raises ValueError for arrays of different shapes, or none."""
    shapes = [tuple(array.shape) for array in arrays]
    if len(set(shapes)) != 1:
        given = ", ".join(map(str, shapes)) or "no array at all"
        raise ValueError(f"{what} have shapes {given}; give one shape, or no list")


def size_of(array: Any) -> int:
    """How many elements."""
    return math.prod(array.shape)


def first_of(value: Any) -> Any:
    """The value itself; of a list, one per device, the first."""
    return value[0] if isinstance(value, list | tuple) else value


def dtype_of(value: Any) -> str:
    """NumPy's name of it: "float32"."""
    return str(value.dtype).removeprefix("torch.")


def _out(verb: str, key: Key, out: Any) -> Any:
    """Checks one array that a pull is to write to; a tensor of torch comes back without its history."""
    if not hasattr(out, "dtype") or isinstance(out, np.generic):
        raise TypeError(
            f"{verb}: out of key {key!r} is a {type(out).__name__}, expected a NumPy or PyTorch array to write to"
        )
    if dtype_of(out) not in DTYPES:
        raise ValueError(
            f"{verb}: out of key {key!r} has dtype {dtype_of(out)}, expected one of {', '.join(DTYPES)}"
        )
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError(f"{verb}: out of key {key!r} is read-only; give a writable array")
    return _detached(out)


def _like(item: Any, array: Any) -> Any:
    import torch  # item is a torch tensor, so torch is there

    return torch.as_tensor(array).reshape(item.shape)


def _detached(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value


def _is_plain(value: Any) -> bool:
    """True for memory that the engine can use as it is: float32, contiguous, on the CPU or a CUDA device."""
    if isinstance(value, np.ndarray):
        return value.dtype == np.float32 and bool(value.flags.c_contiguous)
    return (
        str(value.dtype) == "torch.float32" and value.device.type in ("cpu", "cuda") and value.is_contiguous()
    )
