"""Gradients of tables, as `nn.Embedding(sparse=True)` has them, as the rows that a step has touched.

Each such parameter is a table of the store (gradwire.sparse). A rank whose step has touched no row sends none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gradwire.torch.elements import exchanged_dtype

if TYPE_CHECKING:
    from gradwire import _core
    from gradwire.compress import Compression
    from gradwire.kv import KVStore

Rows = tuple[Any, Any]
"""Ids, NumPy's int64 (n,), and rows, NumPy's float32 (n, elements of a row)."""

_NO_ROWS: Rows = (np.zeros(0, np.int64), np.zeros(0, np.float32))


def rows_of(gradient: torch.Tensor | None, parameter: torch.Tensor) -> Rows:
    """The rows of a gradient, sparse or not; those of a strided one that are not all zero. An id may come twice."""
    elements = parameter[0].numel()
    if gradient is None:
        return np.zeros(0, np.int64), np.zeros((0, elements), np.float32)
    if gradient.layout != torch.sparse_coo or gradient.sparse_dim() != 1:
        gradient = gradient.to_dense().to_sparse(1)
    ids = gradient._indices()[0].cpu().contiguous().numpy()
    return ids, gradient._values().detach().float().cpu().contiguous().numpy().reshape(len(ids), elements)


def has_float32_rows(parameter: torch.Tensor) -> bool:
    """Whether a gradient can travel as rows, which are float32; what has more to it is summed as a dense one."""
    return not parameter.is_complex() and exchanged_dtype(parameter.dtype) == torch.float32


def gradient_of(parameter: torch.Tensor, rows: Rows) -> torch.Tensor:
    """A sparse gradient of a parameter's type and device that has these rows, each once and ascending."""
    values = torch.from_numpy(rows[1]).reshape(-1, *parameter.shape[1:])
    return torch.sparse_coo_tensor(
        torch.from_numpy(rows[0])[None].to(parameter.device),
        values.to(parameter.device, parameter.dtype),
        parameter.shape,
        device=parameter.device,  # and not torch.set_default_device()'s
        is_coalesced=True,
        check_invariants=False,
    )


def all_finite(gradients: Iterable[torch.Tensor | None]) -> bool:
    """False where one of these gradients, sparse or not, holds a NaN or an infinity."""
    values = (each._values() if each.is_sparse else each for each in gradients if each is not None)
    return all(bool(torch.isfinite(each).all()) for each in values)


class RowExchange:
    """The tables among one exchange's parameters, each known by the parameter's index there."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._engine: _core.Engine = store.engine
        self._tables: dict[int, int] = {}  # by index
        self._elements: dict[int, int] = {}  # of a row
        self._sent: dict[int, _core.PulledRows] = {}
        self.met_nonfinite = False  # any rank, in what finish() has taken

    def __contains__(self, index: int) -> bool:
        return index in self._tables

    def __len__(self) -> int:
        return len(self._tables)

    def add(
        self,
        indices: Sequence[int],
        specs: Sequence[tuple[str, Sequence[int]]],
        own: Sequence[Compression | None],
    ) -> None:
        """Declares parameters as tables, by names and shapes. A collective."""
        numbers = self._engine.declare_rows([(name, list(shape)) for name, shape in specs])
        self._engine.init_rows([(number, *_NO_ROWS) for number in numbers])
        apart: dict[Compression, list[int]] = {}
        for index, number, (_, shape), compression in zip(indices, numbers, specs, own, strict=True):
            self._tables[index] = number
            self._elements[index] = int(np.prod(shape[1:]))
            if compression is not None:
                apart.setdefault(compression, []).append(number)
        for compression, own_tables in apart.items():
            self._engine.set_row_compression(own_tables, compression.spec, compression.reply)

    def use(self, compression: Compression, indices: Iterable[int]) -> None:
        """Has those of these that are tables travel by this codec from the next step on. A collective."""
        if tables := [self._tables[index] for index in indices if index in self._tables]:
            self._engine.set_row_compression(tables, compression.spec, compression.reply)

    def send(self, index: int, rows: Rows, priority: int, program_step: int) -> None:
        """Sends this rank's rows of one step."""
        self._sent[index] = self._engine.push_pull_rows(self._tables[index], *rows, priority, program_step)

    def finish(self, scale: float) -> dict[int, Rows]:
        """Waits for what the ranks have sent together, times scale: by index, ids ascending."""
        received = {}
        self.met_nonfinite = False
        for index, pulled in self._sent.items():
            self._store.wait_until(pulled.ticket.wait)
            ids, rows = self._engine.rows_of(pulled)
            self.met_nonfinite |= pulled.ticket.nonfinite
            if scale != 1.0:
                rows *= np.float32(scale)
            received[index] = ids, rows.reshape(len(ids), self._elements[index])
        self._sent.clear()
        return received

    def keep_rollback(self) -> None:
        """Keeps from now on what roll_back() needs."""
        self._engine.keep_row_rollback(True)

    def roll_back(self, indices: Collection[int]) -> None:
        """Puts residuals of these, as far as they are tables, back to what they were before the last step, on all."""
        if tables := [table for index, table in self._tables.items() if index in indices]:
            self._engine.roll_back_rows(tables)

    def residual(self, index: int) -> Rows:
        """What the codec has not sent yet of the rows that were ever sent."""
        ids, rows = self._engine.row_residual(self._tables[index])
        return ids, rows.reshape(len(ids), self._elements[index])

    def set_residual(self, index: int, rows: Rows | None) -> None:
        """Replaces it; None: nothing is left to send."""
        self._engine.set_row_residual(self._tables[index], *(rows or _NO_ROWS))


def rows_of_flat(values: Any, shape: Sequence[int]) -> Rows:
    """The rows, not all zero, of a flat array of a table's elements."""
    table = np.asarray(values, np.float32).reshape(shape[0], -1)
    ids = np.flatnonzero(table.any(axis=1))
    return ids, table[ids]


def saved_rows(saved: Any, shape: Sequence[int]) -> Rows:
    """Rows as a checkpoint has them: {"ids", "rows"}, or all of a flat tensor that was saved of a dense parameter."""
    if isinstance(saved, Mapping):
        return saved["ids"].cpu().numpy(), np.ascontiguousarray(saved["rows"].float().cpu().numpy())
    return rows_of_flat(saved.float().cpu().numpy(), shape)


def saved_flat(saved: Mapping[str, torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    """The residual of a dense parameter, float32 (elements,), from the rows that a checkpoint has."""
    flat = torch.zeros(shape[0], int(np.prod(shape[1:])), dtype=torch.float32, device="cpu")
    flat[saved["ids"].cpu()] = saved["rows"].float().cpu()
    return flat.reshape(-1)
