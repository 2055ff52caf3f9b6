"""Collectives: exact operations of all workers on arrays that are no gradients (metrics, masks, shards, indices).

Example:
    kv = gradwire.kv.create("allreduce")
    loss = kv.collectives.all_reduce(loss, op="average")
    rows = kv.collectives.all_gather(embeddings)      # one array a rank, of any length

Arrays are NumPy's or PyTorch's, on the CPU, of uint8, int8, int32, int64, float16, bfloat16 (PyTorch), float32 or
float64. Contiguous ones are sent from and received into their own memory; results are of the kind that was given.
Every rank makes the same calls in the same order. What differs between ranks (operation, dtype, shape) is a ValueError
with the same text on all of them, and the store lives on; anything else that goes wrong ends the store.

Nothing is compressed. Results are made in rank order, so all ranks get the same bits, whatever the placement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gradwire import _core

__all__ = ["Collectives"]

_DTYPES = ("uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64")


class Collectives:
    """The collectives of one store; `KVStore.collectives` makes it.

    Bytes that each of N workers sends for an array of P bytes are in the README of kvstore/, under "Letters".
    """

    def __init__(self, engine: _core.Engine) -> None:
        self._engine = engine

    def all_reduce(self, array: Any, op: str = "sum", out: Any = None) -> Any:
        """Combines the arrays of all ranks element by element.

        Args:
            array: any shape, the same on all ranks.
            op: "sum", "average" (floats only), "min", "max" or "product". Float16 and bfloat16 are combined in
                float32 and rounded once; integers wrap; NaN wins in min and max.
            out: where to write, of array's dtype and shape; may be array itself. Without: a new array.

        Returns:
            out, the same on every rank.

        Raises:
            ValueError: a bad op, dtype or out; the average of integers; or ranks that differ.
            gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
        """
        given = _given("all_reduce", array)
        result = _like(given, tuple(given.shape)) if out is None else _writable("all_reduce", out, given)
        self._engine.collective_all_reduce(
            _bytes(given), _bytes(result), _dtype(given), op, _agreed(shape=tuple(given.shape))
        )
        return result if out is None else out

    def reduce_scatter(self, array: Any, op: str = "sum") -> Any:
        """As all_reduce, but a rank gets its rows only: the rank-th of near-equal parts, as np.array_split cuts them.

        Args:
            array: at least one dimension, the same shape on all ranks; cut along the first.
            op: as in all_reduce().
        """
        given = _given("reduce_scatter", array)
        row = _row_shape("reduce_scatter", given)
        ranks = self._engine.num_workers
        rows, longer = divmod(given.shape[0], ranks)
        result = _like(given, (rows + (self._engine.rank < longer), *row))
        self._engine.collective_reduce_scatter(
            *(_bytes(given), _bytes(result), _dtype(given), op, math.prod(row)),
            _agreed(shape=tuple(given.shape)),
        )
        return result

    def broadcast(self, array: Any, root: int = 0) -> Any:
        """Writes root's array to everybody's, in place.

        Args:
            array: writable and contiguous; dtype and shape the same on all ranks.

        Returns:
            array.
        """
        target = _writable("broadcast", array, array)
        self._engine.collective_broadcast(
            _bytes(target), _dtype(target), root, _agreed(shape=tuple(target.shape))
        )
        return array

    def all_gather(self, array: Any) -> list[Any]:
        """Gives every rank the arrays of all.

        Args:
            array: ranks may differ in the first dimension, and in nothing else.

        Returns:
            One array a rank, in rank order: views of one run of memory.
        """
        given = _given("all_gather", array)
        row = _row_shape("all_gather", given) if given.shape else None
        counts, raw = self._engine.collective_all_gather(_bytes(given), _dtype(given), _agreed(row_shape=row))
        return _split(given, counts, raw, row)

    def all_to_all(self, arrays: Sequence[Any]) -> list[Any]:
        """Gives rank d the d-th array of every rank.

        Args:
            arrays: one for each rank, of one dtype; they may differ in the first dimension, and in nothing else.

        Returns:
            What each rank had for this one, in rank order: views of one run of memory.

        Raises:
            ValueError: not one array for each rank, or arrays that differ in dtype or in a row's shape.
        """
        given = [_given("all_to_all", array) for array in arrays]
        if len(given) != self._engine.num_workers:
            raise ValueError(
                f"all_to_all: {len(given)} arrays given, expected one for each of {self._engine.num_workers} ranks"
            )
        rows = [_row_shape("all_to_all", array) for array in given]
        kinds = [(_dtype(array), row) for array, row in zip(given, rows, strict=True)]
        if len(set(kinds)) > 1:
            raise ValueError(f"all_to_all: arrays differ in dtype or in the shape of a row: {kinds}")
        counts, raw = self._engine.collective_all_to_all(
            [_bytes(array) for array in given], _dtype(given[0]), _agreed(row_shape=rows[0])
        )
        return _split(given[0], counts, raw, rows[0])

    def barrier(self) -> None:
        """Waits until every rank is here."""
        self._engine.barrier()


def _agreed(**settings: object) -> str:
    """Settings as the engine compares them over the ranks."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _dtype(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def _checked(verb: str, array: Any) -> Any:
    """A NumPy array, or a tensor without its history."""
    if not hasattr(array, "dtype") or not hasattr(array, "shape"):
        raise TypeError(f"{verb}: given a {type(array).__name__}, expected a NumPy or PyTorch array")
    if _dtype(array) not in _DTYPES:
        raise ValueError(f"{verb}: dtype {_dtype(array)} is not one of {', '.join(_DTYPES)}")
    if isinstance(array, np.ndarray | np.generic):
        return np.asarray(array)
    if array.device.type != "cpu":
        raise ValueError(f"{verb}: the tensor is on {array.device}; give a copy on the CPU, tensor.cpu()")
    return array.detach()


def _is_contiguous(array: Any) -> bool:
    return bool(array.flags.c_contiguous if isinstance(array, np.ndarray) else array.is_contiguous())


def _given(verb: str, array: Any) -> Any:
    """An array to read, contiguous."""
    checked = _checked(verb, array)
    if _is_contiguous(checked):
        return checked
    return checked.copy(order="C") if isinstance(checked, np.ndarray) else checked.contiguous()


def _writable(verb: str, out: Any, like: Any) -> Any:
    """An array to write to in its own memory."""
    target = _checked(verb, out)
    if isinstance(out, np.generic) or (isinstance(target, np.ndarray) and not target.flags.writeable):
        raise ValueError(f"{verb}: the array to write to is read-only; give a writable one")
    if not _is_contiguous(target):
        raise ValueError(f"{verb}: the array to write to is not contiguous; give a contiguous one")
    if _dtype(target) != _dtype(like) or tuple(target.shape) != tuple(like.shape):
        raise ValueError(
            f"{verb}: out is {_dtype(target)} of shape {tuple(target.shape)}, "
            f"expected {_dtype(like)} of shape {tuple(like.shape)}"
        )
    return target


def _row_shape(verb: str, array: Any) -> tuple[int, ...]:
    shape = tuple(array.shape)
    if not shape or 0 in shape[1:]:
        raise ValueError(
            f"{verb}: shape {shape} has no rows with elements; only the first dimension may be 0"
        )
    return shape[1:]


def _like(array: Any, shape: tuple[int, ...]) -> Any:
    return np.empty(shape, array.dtype) if isinstance(array, np.ndarray) else array.new_empty(shape)


def _bytes(array: Any) -> Any:
    """The memory of a contiguous array, as NumPy's uint8."""
    if isinstance(array, np.ndarray):
        return array.reshape(-1).view(np.uint8)
    import torch  # array is a tensor, so torch is there

    # A tensor of one element is contiguous whatever its strides are, and torch views none but stride 1 as bytes.
    flat = array.reshape(-1).as_strided((array.numel(),), (1,))
    return flat.view(torch.uint8).numpy()


def _split(like: Any, counts: Sequence[int], raw: Any, row: tuple[int, ...] | None) -> list[Any]:
    """One array a rank out of the blocks' bytes; without a row they are scalars."""
    if isinstance(like, np.ndarray):
        flat = raw.view(like.dtype)
    else:
        import torch

        # An empty array has strides that torch will not view.
        flat = torch.from_numpy(raw).view(like.dtype) if raw.size else like.new_empty(0)
    arrays, at = [], 0
    for count in counts:
        shape = () if row is None else (count // math.prod(row), *row)
        arrays.append(flat[at : at + count].reshape(shape))
        at += count
    return arrays
