"""Sparse tables: a worker pushes only the rows that its step touched, as for an embedding.

Example:
    kv.init("embedding", gw.RowSparse([], [], shape=(50_000, 64)))     # zeros; or RowSparse.from_dense(weight)
    kv.push("embedding", gw.RowSparse(row_ids, rows))                  # duplicates are summed
    kv.row_sparse_pull("embedding", out=rows, row_ids=row_ids)         # rows (n, 64), in the order of row_ids

A round sums the rows of all workers over the union of their ids. Bytes on the wire grow with the rows, not with the
table. Every worker takes part in every round of a table, if need be without rows. Without an optimizer, a table holds
the sums of its last round, and its other rows are zero. With one (set_optimizer()), only rows that a worker pushed are
updated (MXNet's lazy update): weight decay and momentum do not act on the others.

In `dist_async*` the servers' optimizer applies each worker's rows when they arrive; a row is never seen half written.
row_sparse_pull() returns current rows, after this worker's own pushes. With a staleness bound, it waits for workers
that are too far behind in their pushes of this table: push equally often on all workers, if need be without rows.

The store's codec compresses each row by itself. The residual of a row is kept until the row is pushed again.
`2bit:threshold=auto` cannot encode rows: they are sent as float32, and a message on stderr says so once. In `local` and
`device` rows are not compressed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.stores.arrays import engine_dtype, expect_numbers, first_of, real_shape

if TYPE_CHECKING:
    from gradwire import _core
    from gradwire.compress import Compression
    from gradwire.kv import KVStore
    from gradwire.stores.keys import Key

__all__ = ["RowSparse", "SparseKeys"]

_DTYPES = ("float32", "float16", "bfloat16", "float64")


class RowSparse:
    """Some rows of an array; the others are zero.

    Attributes:
        row_ids: int64 (n,): the rows' indices, in any order. Rows with the same index are summed.
        rows: float (n, ...): the rows' values; NumPy's or PyTorch's.
        shape: shape of the whole array, or None if only the store knows it.
    """

    def __init__(self, row_ids: Any, rows: Any, shape: Sequence[int] | None = None) -> None:
        """
        Args:
            row_ids: whole numbers (n,), an array or a list; negative ones are refused when they are pushed.
            rows: (n, ...), an array of float32, float16, bfloat16 or float64; or, where n is 0, anything empty.
            shape: needed by init(), and by the first push_pull() of a new name.

        Raises:
            ValueError: row_ids are no whole numbers of one dimension, or rows are not that many.
        """
        self.shape = None if shape is None else tuple(int(size) for size in shape)
        self.row_ids = _ids("RowSparse", row_ids)
        if not hasattr(rows, "dtype"):
            rows = np.asarray(rows, np.float32)
        if _dtype(rows) not in _DTYPES:
            raise ValueError(f"RowSparse: rows are {_dtype(rows)}, expected one of {', '.join(_DTYPES)}")
        if len(self.row_ids) == 0 and self.shape is not None:
            rows = np.zeros((0, *self.shape[1:]), np.float32)
        if not rows.shape or rows.shape[0] != len(self.row_ids):
            raise ValueError(
                f"RowSparse: {len(self.row_ids)} row_ids but rows of shape {tuple(rows.shape)}; give one row each"
            )
        if self.shape is not None and tuple(rows.shape[1:]) != self.shape[1:]:
            raise ValueError(
                f"RowSparse: rows of shape {tuple(rows.shape[1:])} in an array of shape {self.shape}"
            )
        self.rows = rows

    @classmethod
    def from_dense(cls, array: Any) -> RowSparse:
        """Returns the rows of an array that are not all zero.

        Args:
            array: at least one dimension; NumPy's or PyTorch's.

        Raises:
            ValueError: an array without a dimension.
        """
        dense = _array(array) if hasattr(array, "detach") else np.asarray(array)
        if dense.ndim == 0:
            raise ValueError("RowSparse.from_dense: the array has no dimension, and so no rows")
        ids = np.flatnonzero(_is_not_zero(dense).any(axis=tuple(range(1, dense.ndim))))
        return cls(ids, dense[ids], dense.shape)

    def to_dense(self) -> Any:
        """Returns the whole array, as NumPy's float32.

        Raises:
            ValueError: shape is not known, or a row is outside it.
        """
        if self.shape is None:
            raise ValueError(
                "RowSparse.to_dense: shape is not known; give it to RowSparse(row_ids, rows, shape)"
            )
        outside = self.row_ids[(self.row_ids < 0) | (self.row_ids >= self.shape[0])]
        if outside.size:
            raise ValueError(
                f"RowSparse.to_dense: row_ids hold {outside[0]}, outside an array of {self.shape[0]} rows"
            )
        dense = np.zeros(self.shape, np.float32)
        np.add.at(dense, self.row_ids, _floats(self.rows).reshape(-1, *self.shape[1:]))
        return dense

    def __repr__(self) -> str:
        return f"RowSparse({len(self.row_ids)} rows of {tuple(self.rows.shape[1:])}, shape={self.shape})"


@dataclass(frozen=True)
class _Table:
    number: int
    shape: tuple[int, ...]


def holds_rows(value: Any) -> bool:
    """Tells whether a value of a call on a store is RowSparse, or a list with one in it."""
    if isinstance(value, list | tuple):
        return any(holds_rows(item) for item in value)
    return isinstance(value, RowSparse)


def zeros_like(verb: str, key: Key, value: Any) -> Any:
    """What a key begins with that its first pushpull() declares: zeros of its value's shape.

    Raises: as expect_numbers().
    """
    first = first_of(value)
    if isinstance(first, RowSparse):
        return RowSparse([], [], first.shape)
    expect_numbers(verb, key, first)
    return np.zeros(real_shape(first), engine_dtype(first))


class SparseKeys:
    """The keys of one store that are tables of rows; `KVStore` hands calls on to it."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._tables: dict[Key, _Table] = {}
        self._apart: set[Key] = set()  # given a codec by set_compression()
        self._awaited: dict[Key, tuple[Any, Any]] = {}  # residuals of tables that are yet to be declared

    @property
    def names(self) -> list[Key]:
        """The keys, in the order of init()."""
        return list(self._tables)

    def __contains__(self, key: Key) -> bool:
        return key in self._tables

    def checked(self, verb: str, keys: Sequence[Key], values: Sequence[Any]) -> list[RowSparse]:
        """First rows as init() takes them. Raises ValueError for what is none."""
        firsts = [first_of(value) for value in values]
        for key, value in zip(keys, firsts, strict=True):
            if not isinstance(value, RowSparse):
                raise ValueError(
                    f"{verb}: key {key!r} is no RowSparse, and others of this call are; initialise them in two calls"
                )
            if value.shape is None:
                raise ValueError(
                    f"{verb}: the RowSparse of key {key!r} does not say what shape the whole array has; give it "
                    "shape=(rows, ...)"
                )
            if not value.shape or not all(0 < size < 2**63 for size in value.shape):
                raise ValueError(
                    f"{verb}: the RowSparse of key {key!r} has shape {value.shape}, expected at least one row of at "
                    "least one element, and sizes below 2^63"
                )
            _expect_in_table(verb, key, value.row_ids, value.shape[0])
        return firsts

    def init(self, keys: Sequence[Key], firsts: Sequence[RowSparse], root: int) -> None:
        """Declares tables and stores root's rows. Collective."""
        engine = self._store.engine
        shapes = [value.shape or () for value in firsts]  # checked() has found one each
        numbers = engine.declare_rows([(str(k), list(shape)) for k, shape in zip(keys, shapes, strict=True)])
        engine.init_rows(
            [
                (number, value.row_ids, _floats(value.rows))
                for number, value in zip(numbers, firsts, strict=True)
            ],
            root,
        )
        for key, shape, number in zip(keys, shapes, numbers, strict=True):
            self._tables[key] = _Table(number, shape)
            if (residual := self._awaited.pop(key, None)) is not None:
                engine.set_row_residual(number, *residual)

    def residuals(self) -> dict[Key, tuple[Any, Any]]:
        """What this worker's codecs have not sent yet: ids and rows, of tables of which they have kept any."""
        found = {key: self._store.engine.row_residual(table.number) for key, table in self._tables.items()}
        return {key: residual for key, residual in found.items() if len(residual[0])} | self._awaited

    def set_residuals(self, residuals: Mapping[Key, tuple[Any, Any]]) -> None:
        """Goes on with what residuals() returned; with that of tables that are not declared yet once they are."""
        nothing = (np.zeros(0, np.int64), np.zeros(0, np.float32))
        for key, table in self._tables.items():
            self._store.engine.set_row_residual(table.number, *residuals.get(key, nothing))
        self._awaited = {key: residual for key, residual in residuals.items() if key not in self._tables}

    def push(self, keys: Sequence[Key], values: Sequence[Any], priority: int) -> None:
        """Adds rows to this round of each key."""
        given = [self._given("push", key, value) for key, value in zip(keys, values, strict=True)]
        engine = self._store.engine
        for table, ids, rows in given:
            if (room := engine.room_for_rows(table.number)) is not None:
                self._store.wait_until(room.wait)
            engine.push_rows(table.number, ids, rows, priority)

    def push_pull(
        self, keys: Sequence[Key], values: Sequence[Any], outs: Sequence[Any], priority: int
    ) -> None:
        """Adds rows to this round of each key, and sets outs to all its rows: sums, or weights with an optimizer; where
        pushes are applied at once, to the rows that were given, as they are now.
        """
        given = [self._given("pushpull", key, value) for key, value in zip(keys, values, strict=True)]
        for key, out in zip(keys, outs, strict=True):
            if not holds_rows(out):
                raise TypeError(
                    f"pushpull: out of key {key!r} is a {type(out).__name__}, expected a RowSparse to set, for which "
                    "rows a round has is known when it is over"
                )
        engine = self._store.engine
        pulled = [engine.push_pull_rows(table.number, ids, rows, priority) for table, ids, rows in given]
        for key, (table, _, own), out, one in zip(keys, given, outs, pulled, strict=True):
            ids, rows = self._received(key, table, one, own)
            for item in out if isinstance(out, list | tuple) else [out]:
                item.row_ids, item.rows, item.shape = ids, _like(item.rows, rows), table.shape

    def pull(self, keys: Sequence[Key], outs: Sequence[Any], row_ids: Sequence[Any], priority: int) -> None:
        """Writes the rows of row_ids to outs: arrays in their order, RowSparse ascending and each row once."""
        asked = []
        for key, out, ids in zip(keys, outs, row_ids, strict=True):
            table, wanted = self._table("row_sparse_pull", key), _ids("row_sparse_pull", ids)
            _expect_room(key, out, (len(wanted), *table.shape[1:]))
            asked.append((table, wanted, self._store.engine.pull_rows(table.number, wanted, priority)))
        for key, (table, wanted, pulled), out in zip(keys, asked, outs, strict=True):
            ids, rows = self._received(key, table, pulled)
            distinct, places = np.unique(wanted, return_inverse=True)
            found = np.zeros((len(distinct), *table.shape[1:]), np.float32)
            found[np.searchsorted(distinct, ids)] = rows
            _deliver(out, table, distinct, found, places)

    def use_compression(self, compression: Compression) -> None:
        """Gives all tables but those of set_compression() this codec and reply as their own. Collective."""
        numbers = [table.number for key, table in self._tables.items() if key not in self._apart]
        if numbers:
            self._store.engine.set_row_compression(numbers, compression.spec, compression.reply)

    def set_compression(self, key: Key, spec: str, reply: str) -> None:
        """Gives a table a codec of its own. Collective."""
        number = self._table("set_compression", key).number
        self._store.engine.set_row_compression([number], spec, reply)
        self._apart.add(key)

    def require_dense(self, verb: str, key: Key) -> None:
        """Raises ValueError where key is a table."""
        if key in self._tables:
            raise ValueError(
                f"{verb}: key {key!r} was initialised with a RowSparse; push RowSparse rows to it, and read it by "
                "row_sparse_pull(key, out, row_ids=...)"
            )

    def _table(self, verb: str, key: Key) -> _Table:
        if key not in self._tables:
            raise ValueError(
                f"{verb}: key {key!r} was not initialised with a RowSparse; call init(key, RowSparse(row_ids, rows, "
                "shape)) first"
            )
        return self._tables[key]

    def _given(self, verb: str, key: Key, value: Any) -> tuple[_Table, Any, Any]:
        """Ids and rows of a value, or of those of several devices; checked whole before any of a call is sent."""
        table = self._table(verb, key)
        parts = value if isinstance(value, list | tuple) else [value]
        for part in parts:
            if not isinstance(part, RowSparse):
                raise TypeError(
                    f"{verb}: the value of key {key!r} is a {type(part).__name__}, expected a RowSparse"
                )
            # Of no row, anything empty will do.
            if len(part.row_ids) > 0 and tuple(part.rows.shape[1:]) != table.shape[1:]:
                raise ValueError(
                    f"{verb}: key {key!r} has rows of shape {table.shape[1:]}, given {tuple(part.rows.shape[1:])}"
                )
            _expect_in_table(verb, key, part.row_ids, table.shape[0])
        ids = np.concatenate([part.row_ids for part in parts])
        return table, ids, np.concatenate([_floats(part.rows).reshape(-1) for part in parts])

    def _received(
        self, key: Key, table: _Table, pulled: _core.PulledRows, given: Any = None
    ) -> tuple[Any, Any]:
        self._store.wait_until(pulled.ticket.wait)
        self._store.print_notices()
        ids, rows = self._store.engine.rows_of(pulled)
        self._store.mark(key, pulled.ticket, [rows], given)
        return ids, rows.reshape(-1, *table.shape[1:])


def _dtype(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def _ids(verb: str, given: Any) -> Any:
    """Row ids as NumPy's int64 (n,), contiguous."""
    host = given.detach().cpu().numpy() if hasattr(given, "detach") else np.asarray(given)
    if host.size == 0:
        return np.zeros(0, np.int64)
    if host.ndim != 1 or not np.issubdtype(host.dtype, np.integer):
        raise ValueError(
            f"{verb}: row_ids are {host.dtype} of shape {host.shape}, expected whole numbers of one dimension"
        )
    if host.dtype == np.uint64 and host.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{verb}: row_ids hold {host.max()}, which is no row of any table")
    return np.ascontiguousarray(host, np.int64)


def _expect_in_table(verb: str, key: Key, ids: Any, rows: int) -> None:
    outside = np.flatnonzero((ids < 0) | (ids >= rows))
    if outside.size:
        raise ValueError(
            f"{verb}: row_ids[{outside[0]}] of key {key!r} is {ids[outside[0]]}, outside a table of {rows} rows"
        )


def _floats(rows: Any) -> Any:
    """Rows as NumPy's float32, contiguous, on the host."""
    return np.ascontiguousarray(_array(rows) if hasattr(rows, "detach") else rows, np.float32)


def _is_not_zero(array: Any) -> Any:
    """Bool, of the array's shape; by its bits: a process that flushes denormals takes those for zeros."""
    if array.dtype.kind != "f":
        return array != 0
    bits = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)
    return (bits << 1) != 0  # without the sign


def _array(tensor: Any) -> Any:
    """PyTorch's tensor as NumPy's array: of its own dtype of ours, or float32 where NumPy has none such (bfloat16)."""
    here = tensor.detach().cpu().resolve_neg()
    return (here if _dtype(here) in ("float16", "float32", "float64") else here.float()).numpy()


def _like(before: Any, rows: Any) -> Any:
    """Rows of the kind, dtype and device that stood there before."""
    if isinstance(before, np.ndarray):
        return rows.astype(before.dtype, copy=False)
    import torch  # before is a torch tensor, so torch is there

    return torch.from_numpy(rows).to(before)


def _expect_room(key: Key, out: Any, shape: tuple[int, ...]) -> None:
    for item in out if isinstance(out, list | tuple) else [out]:
        if isinstance(item, RowSparse):
            continue
        if not hasattr(item, "dtype") or tuple(item.shape) != shape:
            given = f"shape {tuple(item.shape)}" if hasattr(item, "dtype") else f"a {type(item).__name__}"
            raise ValueError(
                f"row_sparse_pull: out of key {key!r} is {given}, expected a RowSparse or an array of shape {shape}"
            )
        if _dtype(item) not in _DTYPES:
            raise ValueError(
                f"row_sparse_pull: out of key {key!r} is {_dtype(item)}, expected one of {', '.join(_DTYPES)}"
            )
        if isinstance(item, np.ndarray) and not item.flags.writeable:
            raise ValueError(f"row_sparse_pull: out of key {key!r} is read-only; give a writable array")


def _deliver(out: Any, table: _Table, distinct: Any, found: Any, places: Any) -> None:
    for item in out if isinstance(out, list | tuple) else [out]:
        if isinstance(item, RowSparse):
            item.row_ids, item.rows, item.shape = distinct, _like(item.rows, found), table.shape
        elif isinstance(item, np.ndarray):
            item[...] = found[places]
        else:
            item.detach().copy_(_like(item, found[places]))
