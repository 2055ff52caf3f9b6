"""Keys and values of a call, in all the forms that MXNet's kvstore takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mxnet.ndarray import NDArray

from gradwire.mxnet.errors import KVStoreError

__all__ = ["Key", "grouped"]

Key = int | str


def grouped(verb: str, key: Any, value: Any) -> list[tuple[Key, list[Any]]]:
    """Returns each key once, in the order of the call, with all NDArrays that were given for it.

    Args:
        verb: of errors.
        key: a str or an int; or a list of them, in which a key may be repeated.
        value: of one key an NDArray or, of several devices, a list of them; of a list of keys one of these per key.

    Raises:
        KVStoreError: another type, or not one value per key.
    """
    pairs: dict[Key, list[Any]] = {}
    if isinstance(key, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(key):
            given = len(value) if isinstance(value, list | tuple) else f"a {type(value).__name__}"
            raise KVStoreError(f"{verb}: {len(key)} keys but {given} values; give one value per key")
        for one, its in zip(key, value, strict=True):
            pairs.setdefault(_key(verb, one), []).extend(_arrays(verb, one, its))
    else:
        pairs[_key(verb, key)] = _arrays(verb, key, value)
    return list(pairs.items())


def _key(verb: str, key: Any) -> Key:
    if isinstance(key, bool) or not isinstance(key, int | str | np.integer):
        raise KVStoreError(f"{verb}: key {key!r} is a {type(key).__name__}, expected a str or an int")
    return key if isinstance(key, str) else int(key)


def _arrays(verb: str, key: Any, value: Any) -> list[Any]:
    arrays: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    for array in arrays:
        if not isinstance(array, NDArray):
            raise KVStoreError(
                f"{verb}: the value of key {key!r} is a {type(array).__name__}, expected an NDArray of MXNet"
            )
    if not arrays:
        raise KVStoreError(f"{verb}: key {key!r} has no value; give an NDArray, or one per device")
    if len(shapes := {array.shape for array in arrays}) > 1:
        given = " and ".join(map(str, sorted(shapes)))
        raise KVStoreError(f"{verb}: the values of key {key!r} have shapes {given}; give one shape")
    # mx.np's arrays are NDArrays with other operators: the same memory, as what mx.nd's functions take.
    return [array.as_nd_ndarray() if array.stype == "default" else array for array in arrays]
