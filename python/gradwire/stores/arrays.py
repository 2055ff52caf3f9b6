"""Arrays that calls on a store are given, NumPy's or PyTorch's: those that are sent, and those that are written to.

What travels are real numbers: float32, or float64 for keys that were initialised with 64 bits a number. The engine
widens float16 and bfloat16 as it encodes, and rounds as it decodes. A complex array is one of real numbers with a last
dimension of 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwire.stores.devices import is_on_device, on_host
from gradwire.stores.keys import Key

DTYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "complex128")
_HALVES = ("float16", "bfloat16")
_WIDE = ("float64", "complex128")


class Target:
    """Where a pull writes: the caller's own memory, or an array of the key's dtype that is copied out at the end."""

    def __init__(self, verb: str, key: Key, out: Any, dtype: str, may_be_on_device: bool) -> None:
        """
        Args:
            dtype: float32 or float64, of the key.
            may_be_on_device: the engine writes to devices.
        """
        self._outs = [_out(verb, key, item) for item in (out if isinstance(out, list | tuple) else [out])]
        self._dtype = dtype
        expect_one_shape(f"{verb}: the outs of key {key!r}", self._outs)
        first = self._outs[0]
        takes_halves = len(self._outs) == 1  # else others are to get all bits
        has_dtype = dtype_of(first) == dtype or takes_halves
        may_stay = may_be_on_device or not is_on_device(first)
        if has_dtype and _is_plain(first, dtype) and may_stay:
            self.array, self._copies = first, self._outs[1:]
        elif may_stay and dtype == "float32" and all(map(is_on_device, self._outs)):
            import torch  # they are its tensors, so torch is there

            self.array, self._copies = first.new_empty(first.shape, dtype=torch.float32), self._outs
        else:
            self._receive_on_host()

    def _receive_on_host(self) -> None:
        self.array, self._copies = np.empty(tuple(self._outs[0].shape), dtype=self._dtype), self._outs

    def meet(self, value: Any) -> Any:
        """Returns the value where the engine can take both: on one device, or else both on the host."""
        if is_on_device(value) and is_on_device(self.array) and value.device == self.array.device:
            return value
        if is_on_device(self.array):
            self._receive_on_host()
        here = on_host(value)
        return here if _is_plain(here, self._dtype) else as_numbers(here, self._dtype)

    def deliver(self) -> None:
        """Copies what has arrived to those outs that could not be written to directly."""
        for item in self._copies:
            if isinstance(item, np.ndarray):
                item[...] = np.asarray(self.array)
            else:
                item.copy_(
                    _like(item, self.array).to(item.dtype)
                )  # torch 2.13 negates float32 into a negated half


def engine_dtype(value: Any) -> str:
    """What a key travels as, uncompressed: "float64" or "float32"."""
    return "float64" if dtype_of(value) in _WIDE else "float32"


def numbers_of(verb: str, key: Key, value: Any, dtype: str, may_be_on_device: bool = False) -> Any:
    """Returns a value as the engine takes it for a push: real, contiguous, of this dtype, or of 16 bits where that is
    float32; on the host, unless it may stay on its device.
    """
    expect_numbers(verb, key, value)
    plain = np.asarray(value) if isinstance(value, np.generic) else _detached(value)
    if not isinstance(plain, np.ndarray):
        plain = (plain if may_be_on_device else plain.cpu()).resolve_conj().resolve_neg()
    real = _real_array(plain) if isinstance(plain, np.ndarray) else _real_tensor(plain)
    return real if _is_plain(real, dtype) else as_numbers(real, dtype)


def widened(value: Any) -> Any:
    """Returns a real array that is not of 16 bits: itself, or as float32."""
    return as_numbers(value, "float32") if dtype_of(value) in _HALVES else value


def as_numbers(value: Any, dtype: str) -> Any:
    """Returns a real array as one of this dtype, contiguous: itself where it is one."""
    if isinstance(value, np.ndarray):
        return np.asarray(value, dtype=dtype, order="C")
    return (value.double() if dtype == "float64" else value.float()).contiguous()


def expect_numbers(verb: str, key: Key, value: Any) -> None:
    """Raises TypeError for what is no array, ValueError for one of another dtype."""
    if not is_array(value):
        raise TypeError(
            f"{verb}: the value of key {key!r} is a {type(value).__name__}, expected a NumPy or PyTorch array"
        )
    _check_dtype(f"{verb}: the value of key {key!r}", value)
    _expect_dense(f"{verb}: the value of key {key!r}", value)


def is_array(value: Any) -> bool:
    """True for NumPy's arrays and numbers, and PyTorch's tensors. Arrays of other libraries have a dtype, too."""
    return isinstance(value, np.ndarray | np.generic) or (
        hasattr(value, "dtype") and hasattr(value, "detach")
    )


def real_shape(value: Any) -> list[int]:
    """The shape of the real numbers."""
    return [*np.shape(value), 2] if dtype_of(value).startswith("complex") else list(np.shape(value))


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


def _check_dtype(what: str, value: Any) -> None:
    if dtype_of(value) not in DTYPES:
        raise ValueError(f"{what} has dtype {dtype_of(value)}, expected one of {', '.join(DTYPES)}")


def _out(verb: str, key: Key, out: Any) -> Any:
    """Checks one array that a pull is to write to; a tensor of torch comes back without its history, a complex array
    as real numbers.
    """
    if not is_array(out) or isinstance(out, np.generic):
        raise TypeError(
            f"{verb}: out of key {key!r} is a {type(out).__name__}, expected a NumPy or PyTorch array to write to"
        )
    _check_dtype(f"{verb}: out of key {key!r}", out)
    _expect_dense(f"{verb}: out of key {key!r}", out)
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError(f"{verb}: out of key {key!r} is read-only; give a writable array")
    if isinstance(out, np.ndarray):
        return _real_array(out)
    if has_shared_elements(out):
        raise ValueError(
            f"{verb}: several elements of the out of key {key!r} are one in memory (expand()); give a tensor of its "
            "own memory, as out.clone()"
        )
    if out.is_conj():
        raise ValueError(
            f"{verb}: out of key {key!r} is a lazy view of conjugates, as conj() gives; give a tensor of its own, such "
            "as out.resolve_conj()"
        )
    return _real_tensor(_detached(out))


def _real_array(array: Any) -> Any:
    """The same memory, also where it is not contiguous; a complex array's with a last dimension of 2."""
    return array[..., None].view(array.real.dtype) if np.iscomplexobj(array) else array


def _real_tensor(tensor: Any) -> Any:
    if not tensor.is_complex():
        return tensor
    import torch  # it is a tensor, so torch is there

    return torch.view_as_real(tensor)


def has_shared_elements(tensor: Any) -> bool:
    """True for a tensor of PyTorch of which several elements lie in one place, as after expand()."""
    sizes = zip(tuple(tensor.shape), tensor.stride(), strict=True)
    return any(stride == 0 and size > 1 for size, stride in sizes)


def layout_of(value: Any) -> str:
    """How a tensor of PyTorch holds its elements, as "torch.sparse_coo"; "" for what is dense."""
    layout = str(getattr(value, "layout", "torch.strided"))
    return "" if layout == "torch.strided" else layout


def _expect_dense(what: str, value: Any) -> None:
    if layout := layout_of(value):
        raise ValueError(
            f"{what} is a {layout} tensor, expected a dense one: give tensor.to_dense(), or initialise the key with a "
            "RowSparse and give gw.RowSparse(row_ids, rows)"
        )


def _like(item: Any, array: Any) -> Any:
    import torch  # item is a torch tensor, so torch is there

    return torch.as_tensor(array, device="cpu" if isinstance(array, np.ndarray) else None).reshape(item.shape)


def _detached(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value


def _is_plain(value: Any, dtype: str) -> bool:
    """True for memory that the engine can use as it is, for a key of this dtype: of it, or of 16 bits in the place of
    float32, contiguous, on the CPU; what is not float64 also on a CUDA device.
    """
    own = dtype_of(value)
    if own != dtype and not (dtype == "float32" and own in _HALVES):
        return False
    if isinstance(value, np.ndarray):  # bfloat16 is an extension's dtype, which NumPy does not export
        return own != "bfloat16" and bool(value.flags.c_contiguous)
    homes = ("cpu",) if own == "float64" else ("cpu", "cuda")
    return value.device.type in homes and value.is_contiguous() and not value.is_neg()
