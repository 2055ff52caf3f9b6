"""What a job's workers sum: dense keys by operations of MXNet's engine, tables of rows by calls that wait."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwire import _core, kv
from gradwire.mxnet import rows
from gradwire.mxnet.agreement import Agreement
from gradwire.mxnet.devices import as_numbers
from gradwire.mxnet.errors import KVStoreError
from gradwire.mxnet.key_lists import Key
from gradwire.mxnet.memory import array_over, is_plain, view_of
from gradwire.mxnet.operations import Operations
from gradwire.stores import connect

__all__ = ["JobSums"]

_DTYPES = ("float32", "float16", "float64")

# Of all JobSums of a store: optimizers are counted, which gives the same numbers on all ranks.
_optimizers_of: weakref.WeakKeyDictionary[kv.KVStore, Iterator[int]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class _Dense:
    """A dense key: the engine's number of it, and where answers are received: one memory as NumPy's and as MXNet's."""

    number: int
    values: Any  # of the key's shape, float64 where the key is, else float32
    received: Any

    @property
    def dtype(self) -> str:
        """In which it travels without a codec."""
        return str(self.values.dtype)


@dataclass(frozen=True)
class _Table:
    """A key of rows, by its name in gradwire's store."""

    name: str
    shape: tuple[int, ...]


class JobSums:
    """Sums over all workers of a job, and first values that are rank 0's.

    The array that push_pull() and pull() return of a dense key is the key's own: the next one writes to it, and waits
    for whoever reads it.
    """

    def __init__(self, store: kv.KVStore) -> None:
        self._store = store
        self._operations = Operations(store, in_order=connect.sums_in_one_order(store.type))
        self._applies_at_once = connect.applies_at_once(store.type)
        self._dense: dict[Key, _Dense] = {}
        self._tables: dict[Key, _Table] = {}
        # Of dense keys to which rows were pushed last: their sum, which a pull brings. None where a library sums.
        self._sums_of_rows: dict[Key, Any] = {}
        self._has_tables = not connect.sums_in_one_order(store.type)

    def use_compression(self, spec: str) -> None:
        """The store has been told already: its engine encodes."""

    def init(self, values: Sequence[tuple[Key, Any]]) -> None:
        """Declares keys, those of row_sparse values as tables, with rank 0's values. Collective.

        Raises:
            KVStoreError: a dtype other than float32, float16 and float64.
            ValueError: ranks differ.
        """
        for key, value in values:
            if np.dtype(value.dtype).name not in _DTYPES:
                raise KVStoreError(
                    f"init: key {key!r} is {np.dtype(value.dtype).name}, expected one of {', '.join(_DTYPES)}"
                )
        self._declare([(key, value) for key, value in values if value.stype == "default"])
        if tables := [(key, rows.to_rows(value)) for key, value in values if value.stype != "default"]:
            made = self._new_tables([(str(key), first) for key, first in tables])
            self._tables.update(zip((key for key, _ in tables), made, strict=True))

    def push(self, key: Key, values: Sequence[Any], priority: int) -> None:
        """Adds the values to this round of the key."""
        self._operations.raise_failure()
        if (table := self._tables.get(key)) is not None:
            return self._store.push(table.name, [rows.to_rows(value) for value in values], priority)
        if self._are_rows(values):  # which waits, and brings the sum
            self._sums_of_rows[key] = self._push_pull_rows(key, values, priority)
            return None
        self._sums_of_rows.pop(key, None)
        dense = self._dense[key]
        value = as_numbers(values, dense.dtype)

        def begin() -> _core.Ticket | None:
            taken, _ = self._store.engine.push(dense.number, view_of(value), priority)
            return None if taken.wait(0) else taken

        return self._operations.run(begin, [value], [dense.received], priority)

    def pull(self, key: Key, priority: int) -> Any:
        """Returns the key's value after this worker's last push, dense float32, or float64 of a key of float64; of a
        table all of it; where rows were pushed to a dense key, a RowSparseNDArray of float32.
        """
        self._operations.raise_failure()
        if (table := self._tables.get(key)) is not None:
            return self.pull_rows(key, np.arange(table.shape[0]), priority).tostype("default")
        if (total := self._sums_of_rows.get(key)) is not None:
            return total
        dense = self._dense[key]
        self._operations.run(
            lambda: self._store.engine.pull(dense.number, dense.values, priority),
            [],
            [dense.received],
            priority,
            lambda ticket: self._store.mark(key, ticket, [dense.values]),
        )
        return dense.received

    def push_pull(self, key: Key, values: Sequence[Any], priority: int, into: Any = None) -> Any:
        """Returns the sum of this round: dense as pull() or, where rows were pushed, a RowSparseNDArray of float32.
        Where servers apply each push at once: the weight, of a table all rows of it.

        Args:
            key, values, priority: as push().
            into: an array that is to be written in place of the key's own: one of values where it is the only one.
        """
        self._operations.raise_failure()
        if key in self._tables:
            return self._push_pull_rows(key, values, priority)
        if self._are_rows(values):
            self._sums_of_rows[key] = self._push_pull_rows(key, values, priority)
            return self._sums_of_rows[key]
        self._sums_of_rows.pop(key, None)
        dense = self._dense[key]
        value = as_numbers(values, dense.dtype)
        if into is value and is_plain(value, dense.dtype):
            return self._sum_in_place(key, dense, value, priority)
        engine = self._store.engine
        self._operations.run(
            lambda: engine.push_pull(dense.number, view_of(value), dense.values, priority),
            *([value], [dense.received], priority),
            lambda ticket: self._store.mark(key, ticket, [dense.values], view_of(value)),
        )
        return dense.received

    def pull_rows(self, key: Key, row_ids: Any, priority: int) -> Any:
        """Returns the rows row_ids, int64 (n,) ascending, of a table as a RowSparseNDArray of float32.

        Raises: KVStoreError: the key was initialised with a dense value.
        """
        self._operations.raise_failure()
        if (table := self._tables.get(key)) is None:
            raise KVStoreError(
                f"row_sparse_pull: key {key!r} was initialised with a dense value; pull it by pull(), or give init() a "
                "row_sparse one"
            )
        found = np.empty((len(row_ids), *table.shape[1:]), np.float32)
        self._store.row_sparse_pull(table.name, out=found, priority=priority, row_ids=row_ids)
        return rows.from_rows(row_ids, found, table.shape)

    def agreement(self, optimizer: Any) -> Agreement | None:
        """Returns what compares this optimizer with those of the other workers, if there are any. Collective."""
        if self._store.num_workers == 1:
            return None
        number = next(_optimizers_of.setdefault(self._store, itertools.count()))
        name = f"gradwire.mxnet optimizer {number}"
        return Agreement(self, name, self._store.rank, range(self._store.num_workers), optimizer)

    def declare_exact(self, name: str, shape: tuple[int, ...]) -> _Dense:
        """Declares a key of float64 that no codec compresses, beside those of the script. Collective."""
        engine = self._store.engine
        (number,) = engine.declare([(name, list(shape), "float64")])
        engine.set_key_compression([number], "none", "none")
        return _received_as(number, shape, "float64")

    def begin_exchange(self, dense: _Dense, values: Any) -> None:
        """Sums NumPy's values, float64, beside what the script sums."""
        self._operations.run(
            lambda: self._store.engine.push_pull(dense.number, values, dense.values, 0),
            *([], [dense.received], 0),
        )

    def end_exchange(self, dense: _Dense) -> Any:
        """Waits, and returns the sum. Raises what an exchange has failed with."""
        dense.received.wait_to_read()
        self._operations.raise_failure()
        return dense.values

    def at_end(self, look: Callable[[], None]) -> None:
        """Calls look() when the store is closed, once all exchanges are over; what it raises, close() does."""
        self._operations.at_end(look)

    def is_of(self, store: kv.KVStore) -> bool:
        """Tells whether the sums are this store's, and it is open."""
        return self._store is store and not self._operations.is_closed

    def close(self, *, finish: bool) -> None:
        """Leaves the job. finish: once all exchanges are over; else those under way fail."""
        self._operations.close(finish=finish)

    def finish(self) -> None:
        """Waits for all that was asked for. Raises what an exchange has failed with."""
        self._operations.finish()

    def raise_failure(self) -> None:
        """Raises what an exchange has failed with."""
        self._operations.raise_failure()

    def _declare(self, values: Sequence[tuple[Key, Any]]) -> None:
        if not values:
            return
        named = [(str(key), list(value.shape), np.dtype(value.dtype).name) for key, value in values]
        numbers = self._store.engine.declare(named)
        firsts = [np.ascontiguousarray(value.asnumpy(), _travels_as(value.dtype)) for _, value in values]
        self._store.engine.init(numbers, firsts, 0)
        for (key, _), number, first in zip(values, numbers, firsts, strict=True):
            self._dense[key] = _received_as(number, first.shape, str(first.dtype))

    def _new_tables(self, firsts: Sequence[tuple[str, Any]]) -> list[_Table]:
        self._store.init([name for name, _ in firsts], [first for _, first in firsts])
        return [_Table(name, first.shape) for name, first in firsts]

    def _are_rows(self, values: Sequence[Any]) -> bool:
        """Whether the values of a dense key travel as rows. Not where a library sums, which knows no rows; nor at once,
        where a table beside the key would be what servers update, and not the weight.
        """
        travels = self._has_tables and not self._applies_at_once
        return travels and all(value.stype == "row_sparse" for value in values)

    def _push_pull_rows(self, key: Key, values: Sequence[Any], priority: int) -> Any:
        """Of a dense key whose gradients are rows, a table beside it carries them: declared by the first such push."""
        if self._applies_at_once:
            self.push(key, values, priority)
            return self.pull_rows(key, np.arange(self._tables[key].shape[0]), priority)
        given = [rows.to_rows(value) for value in values]
        if (table := self._tables.get(key)) is None:
            name = f"rows of {key}"
            if name not in self._store.rows:
                self._new_tables([(name, rows.none(values[0].shape))])
            table = _Table(name, values[0].shape)
        total = rows.none(table.shape)
        self._store.pushpull(table.name, given, out=total, priority=priority)
        return rows.from_rows(total.row_ids, total.rows, table.shape)

    def _sum_in_place(self, key: Key, dense: _Dense, value: Any, priority: int) -> Any:
        engine = self._store.engine

        def begin() -> Any:
            memory = view_of(value)
            return engine.push_pull(dense.number, memory, memory, priority)

        self._operations.run(
            begin,
            *([], [value, dense.received], priority),
            lambda ticket: self._store.mark(key, ticket, [view_of(value)]),
        )
        return value


def _travels_as(dtype: Any) -> str:
    return "float64" if np.dtype(dtype) == np.float64 else "float32"


def _received_as(number: int, shape: tuple[int, ...], dtype: str) -> _Dense:
    received = np.zeros(shape, dtype)
    return _Dense(number, received, array_over(received))
