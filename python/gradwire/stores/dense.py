"""The keys of one store whose values are whole arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradwire import _core
from gradwire.compress import Compression
from gradwire.settings.suggestions import nearest
from gradwire.sparse import SparseKeys
from gradwire.stores.arrays import (
    Target,
    dtype_of,
    engine_dtype,
    expect_numbers,
    expect_one_shape,
    first_of,
    numbers_of,
    real_shape,
    size_of,
    widened,
)
from gradwire.stores.devices import is_on_device
from gradwire.stores.keys import Key


class FirstValue(NamedTuple):
    """What a key begins with: the numbers as the engine takes them, and how the key is declared."""

    array: Any
    shape: list[int]
    dtype: str


class DenseKeys:
    """Those keys, beside which the store has tables of rows; `KVStore` asks it for what the engine calls them."""

    def __init__(self, engine: _core.Engine, tables: SparseKeys, uses_devices: bool) -> None:
        self.ids: dict[Key, int] = {}
        self._sizes: dict[Key, int] = {}  # elements
        self._dtypes: dict[Key, str] = {}  # float32, or float64
        self._engine = engine
        self._tables = tables
        self._uses_devices = uses_devices
        self._awaited: dict[Key, Any] = {}  # residuals of keys that are yet to be declared

    def checked(self, verb: str, keys: Sequence[Key], values: Sequence[Any]) -> list[FirstValue]:
        """First values as init() takes them. Raises ValueError or TypeError for what is none."""
        found = []
        for key, value in zip(keys, values, strict=True):
            first = first_of(value)
            expect_numbers(verb, key, first)
            array = widened(numbers_of(verb, key, first, engine_dtype(first)))
            found.append(FirstValue(array, real_shape(first), _declared_dtype(first)))
        return found

    def expect_outs(
        self, verb: str, keys: Sequence[Key], values: Sequence[FirstValue], outs: Sequence[Any]
    ) -> None:
        """Raises ValueError or TypeError for outs to which these first values cannot be written."""
        for key, value, out in zip(keys, values, outs, strict=True):
            target = Target(verb, key, out, dtype_of(value.array), self._uses_devices)
            _expect_size(verb, key, size_of(value.array), size_of(target.array))

    def init(self, keys: Sequence[Key], values: Sequence[FirstValue], root: int) -> None:
        """Declares keys and stores root's values. Collective."""
        ids = self._engine.declare(
            [(str(key), value.shape, value.dtype) for key, value in zip(keys, values, strict=True)]
        )
        self._engine.init(ids, [value.array for value in values], root)
        for name, identity, value in zip(keys, ids, values, strict=True):
            self.ids[name], self._sizes[name] = identity, size_of(value.array)
            self._dtypes[name] = dtype_of(value.array)
            if (residual := self._awaited.pop(name, None)) is not None:
                self._engine.set_residual(identity, residual)

    def use_compression(self, compression: Compression) -> None:
        """Gives all keys this codec and reply as their own. Collective."""
        self._engine.set_key_compression(list(self.ids.values()), compression.spec, compression.reply)

    def residuals(self) -> dict[Key, Any]:
        """What this worker's codecs have not sent yet, float32 (elements,), of keys of which they have kept any."""
        found = {key: self._engine.residual(identity) for key, identity in self.ids.items()}
        return {key: residual for key, residual in found.items() if residual.any()} | self._awaited

    def set_residuals(self, residuals: Mapping[Key, Any]) -> None:
        """Goes on with what residuals() returned; with that of keys that are not declared yet once they are."""
        for key, identity in self.ids.items():
            if key in residuals or self._engine.residual(identity).any():
                zeros = np.zeros(self._sizes[key], np.float32)
                self._engine.set_residual(identity, residuals.get(key, zeros))
        self._awaited = {key: residual for key, residual in residuals.items() if key not in self.ids}

    def arrays(self, verb: str, key: Key, value: Any) -> list[Any]:
        """The values of a key's devices as the engine takes them: on their devices where all are, but for float64."""
        self._require_known(verb, key)
        values = value if isinstance(value, list | tuple) else [value]
        dtype = self._dtypes[key]
        stay = self._uses_devices and dtype == "float32" and all(is_on_device(part) for part in values)
        arrays = [numbers_of(verb, key, part, dtype, stay) for part in values]
        expect_one_shape(f"{verb}: the values of key {key!r}", arrays)
        _expect_size(verb, key, self._sizes[key], size_of(arrays[0]))
        return arrays

    def target(self, verb: str, key: Key, out: Any) -> Target:
        """Where a pull of the key is to write."""
        self._require_known(verb, key)
        target = Target(verb, key, out, self._dtypes[key], self._uses_devices)
        _expect_size(verb, key, self._sizes[key], size_of(target.array))
        return target

    def _require_known(self, verb: str, key: Key) -> None:
        self._tables.require_dense(verb, key)
        if key not in self.ids:
            known = [str(name) for name in self.ids]
            near = nearest(str(key), known)
            meant = f"; did you mean {near!r}?" if near else ""
            raise ValueError(f"{verb}: key {key!r} has not been initialised{meant}; call init first")


def _expect_size(verb: str, key: Key, size: int, given: int) -> None:
    if given != size:
        raise ValueError(f"{verb}: key {key!r} has {size} elements, {given} given")


def _declared_dtype(value: Any) -> str:
    """What the key is said to be, which ranks compare: real, for complex numbers are two of those."""
    return engine_dtype(value) if dtype_of(value).startswith("complex") else dtype_of(value)
