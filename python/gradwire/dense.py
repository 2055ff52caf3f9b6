"""The keys of one store whose values are whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwire import _core
from gradwire.arrays import Target, dtype_of, expect_one_shape, first_of, floats_of, size_of
from gradwire.devices import is_on_device
from gradwire.keys import Key
from gradwire.sparse import SparseKeys


class DenseKeys:
    """Those keys, beside which the store has tables of rows; `KVStore` asks it for what the engine calls them."""

    def __init__(self, engine: _core.Engine, tables: SparseKeys, encodes_on_devices: bool) -> None:
        self.ids: dict[Key, int] = {}
        self._sizes: dict[Key, int] = {}  # elements
        self._engine = engine
        self._tables = tables
        self._encodes_on_devices = encodes_on_devices

    def init(self, verb: str, keys: Sequence[Key], values: Sequence[Any], root: int) -> None:
        """Declares keys and stores root's values. Collective."""
        arrays = [floats_of(verb, name, first_of(item)) for name, item in zip(keys, values, strict=True)]
        ids = self._engine.declare(
            [
                (str(k), list(np.shape(first_of(v))), dtype_of(first_of(v)))
                for k, v in zip(keys, values, strict=True)
            ]
        )
        for name, identity, array in zip(keys, ids, arrays, strict=True):
            self.ids[name], self._sizes[name] = identity, size_of(array)
            self._engine.init(identity, array, root)

    def arrays(self, verb: str, key: Key, value: Any) -> list[Any]:
        """The values of a key's devices as float32, contiguous; on their devices where all are."""
        values = value if isinstance(value, list | tuple) else [value]
        stay = self._encodes_on_devices and all(is_on_device(part) for part in values)
        arrays = [floats_of(verb, key, part, stay) for part in values]
        expect_one_shape(f"{verb}: the values of key {key!r}", arrays)
        self._expect_size(verb, key, size_of(arrays[0]))
        return arrays

    def target(self, verb: str, key: Key, out: Any) -> Target:
        """Where a pull of the key is to write."""
        target = Target(verb, key, out, self._encodes_on_devices)
        self._expect_size(verb, key, size_of(target.array))
        return target

    def _expect_size(self, verb: str, key: Key, given: int) -> None:
        self._tables.require_dense(verb, key)
        if key not in self.ids:
            known = [str(name) for name in self.ids]
            near = f"; did you mean {_core.nearest(str(key), known)!r}?" if known else ""
            raise ValueError(f"{verb}: key {key!r} has not been initialised{near}; call init first")
        if given != self._sizes[key]:
            raise ValueError(f"{verb}: key {key!r} has {self._sizes[key]} elements, {given} given")
