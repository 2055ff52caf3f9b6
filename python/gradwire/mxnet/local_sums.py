"""What the stores of one process hold: `local`, `device` and their other names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from gradwire import kv
from gradwire.mxnet.devices import added
from gradwire.mxnet.key_lists import Key
from gradwire.mxnet.memory import array_over

__all__ = ["LocalSums"]


class LocalSums:
    """Sums over this process's devices; with a codec each encodes, with a residual of its own, as in MXNet."""

    def __init__(self, store: kv.KVStore) -> None:
        self._store = store
        self._compresses = False
        self._held: dict[Key, Any] = {}

    def use_compression(self, spec: str) -> None:
        """Compresses from now on what each device gives, by the store's codec, which has been told already."""
        self._compresses = spec != "none"

    def init(self, values: Sequence[tuple[Key, Any]]) -> None:
        """Stores first values, of any storage type."""
        for key, value in values:
            self._held[key] = value.copy()

    def push(self, key: Key, values: Sequence[Any], priority: int) -> None:
        """Holds the values' sum from now on."""
        total = self._sum(key, values)
        self._held[key] = total.copy() if total is values[0] else total

    def pull(self, key: Key, priority: int) -> Any:
        """Returns what is held; not to be written to."""
        return self._held[key]

    def push_pull(self, key: Key, values: Sequence[Any], priority: int, into: Any = None) -> Any:
        """push() and pull()."""
        self.push(key, values, priority)
        return self._held[key]

    def pull_rows(self, key: Key, row_ids: Any, priority: int) -> Any:
        """Returns the rows row_ids, int64 (n,) ascending, as a RowSparseNDArray."""
        held = self._held[key]
        return mx.nd.sparse.retain(held.tostype("row_sparse"), mx.nd.array(row_ids, dtype="int64"))

    def agreement(self, optimizer: Any) -> None:
        """There is no other worker to agree with."""

    def is_of(self, store: kv.KVStore) -> bool:
        """Tells whether the sums are this store's."""
        return self._store is store

    def close(self, *, finish: bool) -> None:
        """Ends the store."""
        self._store.close()

    def finish(self) -> None:
        """Nothing of ours is under way here."""

    def raise_failure(self) -> None:
        """Nothing can have failed unseen here."""

    def _sum(self, key: Key, values: Sequence[Any]) -> Any:
        encodes = self._compresses or self._store.devices.has_leftover(key)
        if not encodes or values[0].stype != "default":
            return added(values)
        arrays = [np.ascontiguousarray(value.asnumpy(), np.float32) for value in values]
        return array_over(self._store.devices.add(key, arrays)).astype(values[0].dtype)
