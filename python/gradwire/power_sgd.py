"""PowerSGD: sends matrices of gradients as products of two narrow ones, in two uncompressed rounds over a store.

Example:
    store = gradwire.kv.create("allreduce")
    power = PowerSGD(store, [p.shape for p in model.parameters()], rank=4)
    loss.backward()
    if power.all_reduce([p.grad for p in model.parameters()]):   # every rank's mean, in place
        optimizer.step()

A worker sends rank * (n + m) floats for a matrix of n rows and m columns, in place of n * m. The second round needs the
result of the first, so it is not a codec: it drives the store.

Source: Vogels, Karimireddy, Jaggi: PowerSGD: Practical Low-Rank Gradient Compression, 2019, algorithm 1 (rank r, one
power iteration, warm start) and algorithm 2 (error feedback; its momentum is the optimizer's). The difference between a
worker's gradient and the mean is never sent. It stays in the worker's error, and cancels out between workers. So errors
grow if workers have different data, which is no sign of trouble. Deviation: a step starts from q made orthonormal. It
spans the same space, and keeps products in range for gradients of any size. If q's columns are dependent or 0, as after
a step without a gradient, random columns replace them.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradwire.compress import Compression

if TYPE_CHECKING:
    from gradwire.kv import KVStore

__all__ = ["PowerSGD"]

Floats = NDArray[np.float32]
_DEPENDENT = 1e-6  # a column has nothing of its own where less than this part of it is left
# Objects by store: its keys are declared once, so those of each object have a number, the same on all ranks.
_made: weakref.WeakKeyDictionary[KVStore, itertools.count[int]] = weakref.WeakKeyDictionary()


@dataclass
class _Matrix:
    """One gradient that is sent as p q': where its factors lie, and what this worker still owes."""

    index: int  # among the gradients
    p: Floats  # (rows, rank), of the first round's memory
    q: Floats  # (columns, rank), of the second's
    basis: Floats  # (columns, rank): the q of the round before, orthonormal, which the next one starts from
    drawn: Floats  # (columns, rank): what stands in for columns that q lacks, the same in every round
    error: Floats  # (rows, columns)
    wanted: Floats  # (rows, columns), gradient + error


class PowerSGD:
    """Averages one model's gradients over a store's workers, approximately.

    Threading: one thread; every rank makes the same calls in the same order.
    """

    def __init__(
        self,
        store: KVStore,
        shapes: Sequence[Sequence[int]],
        *,
        rank: int = 4,
        min_rate: float = 2.0,
        seed: int = 0,
    ) -> None:
        """Declares two keys of the store, a collective.

        Args:
            store: from `gradwire.kv.create()`, without gradient compression and without an optimizer.
            shapes: of the gradients, in the order in which all_reduce() will get them. A gradient is the matrix of
                its first dimension by all others; (n, m) is compressed if (n + m) * rank * min_rate < n * m. Others,
                vectors among them, travel as they are, in the first round.
            rank: columns of the factors, at least 1; at most a matrix's smaller side is used.
            min_rate: see shapes; above 0.
            seed: of the first factors, which are rank 0's on every rank.

        Raises:
            ValueError: an argument out of range, a store that compresses or whose servers have an optimizer, or ranks
                that differ.
        """
        if not isinstance(rank, int) or rank < 1:
            raise ValueError(f"PowerSGD: rank={rank!r}, expected a whole number of 1 or more")
        if not min_rate > 0:
            raise ValueError(f"PowerSGD: min_rate={min_rate!r}, expected a number above 0")
        _require_sums(store)
        store.reclaim()
        if store.compression.spec != "none":
            raise ValueError(
                f"PowerSGD: the store compresses ({store.compression}), and the factors must travel as they are; "
                "leave gradient compression out"
            )
        self._store = store
        self._engine = store.engine
        self._scale = 1.0 / store.num_workers
        self._shapes = [tuple(int(side) for side in shape) for shape in shapes]
        self._sizes = [math.prod(shape) for shape in self._shapes]
        if not self._shapes or 0 in self._sizes:
            raise ValueError(f"PowerSGD: shapes {self._shapes}: expected at least one, all with elements")
        factors = {
            index: sides
            for index, shape in enumerate(self._shapes)
            if (sides := _factors(shape, rank, min_rate)) is not None
        }
        self._dense = [index for index in range(len(self._shapes)) if index not in factors]
        first = sum(n * r for n, _, r in factors.values()) + sum(self._sizes[i] for i in self._dense)
        second = sum(m * r for _, m, r in factors.values())
        self._first = np.zeros(first, np.float32)
        self._second = np.zeros(second, np.float32)
        self._keys = self._declare(first, second)
        start = self._start(second, seed)
        self._matrices = []
        at_p = at_q = 0
        for index, (n, m, r) in factors.items():
            p, q = slice(at_p, at_p := at_p + n * r), slice(at_q, at_q := at_q + m * r)
            self._matrices.append(
                _Matrix(
                    index,
                    self._first[p].reshape(n, r),
                    self._second[q].reshape(m, r),
                    _orthonormal(start[q].reshape(m, r)),
                    start[q].reshape(m, r),
                    np.zeros((n, m), np.float32),
                    np.zeros((n, m), np.float32),
                )
            )
        self._vectors = self._first[at_p:]

    # -- a step ----------------------------------------------------------------------------------------

    def all_reduce(self, gradients: Sequence[Any]) -> bool:
        """Replaces every gradient by the workers' mean, matrices by a mean of low rank. Collective.

        Args:
            gradients: float32 arrays, NumPy's or PyTorch's, on the CPU, with the shapes given; written in place.

        Returns: True. False if a worker's gradient, or a product of it, was NaN or infinite: then every gradient is NaN
        on every
            rank, and no error has changed. Skip the step.

        Raises:
            ValueError: another number of gradients, or another shape or dtype; or servers have an optimizer.
            gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
        """
        _require_sums(self._store)
        arrays = self._arrays(gradients)
        for matrix in self._matrices:
            np.add(arrays[matrix.index].reshape(matrix.error.shape), matrix.error, out=matrix.wanted)
            np.matmul(matrix.wanted, matrix.basis, out=matrix.p)
        np.concatenate(
            [arrays[index].reshape(-1) for index in self._dense] or [self._vectors], out=self._vectors
        )
        self._store.wait_until(
            self._engine.push_pull(self._keys[0], self._first, self._first, 0, self._scale).wait
        )
        if not np.isfinite(self._first).all():
            return _fill_with_nan(arrays)
        for matrix in self._matrices:
            matrix.p[...] = _orthonormal(matrix.p)
            np.matmul(matrix.wanted.T, matrix.p, out=matrix.q)
        if self._matrices:
            self._store.wait_until(
                self._engine.push_pull(self._keys[1], self._second, self._second, 0, self._scale).wait
            )
        if not np.isfinite(self._second).all():
            return _fill_with_nan(arrays)
        self._finish(arrays)
        return True

    def _finish(self, arrays: Sequence[Any]) -> None:
        for matrix in self._matrices:
            mean = matrix.p @ matrix.q.T
            np.subtract(matrix.wanted, mean, out=matrix.error)
            matrix.basis[...] = _orthonormal(matrix.q, instead=matrix.drawn)
            arrays[matrix.index][...] = mean.reshape(self._shapes[matrix.index])
        at = 0
        for index in self._dense:
            vector = self._vectors[at : at + self._sizes[index]]
            arrays[index][...] = vector.reshape(self._shapes[index])
            at += self._sizes[index]

    # -- what it is, and what it keeps -----------------------------------------------------------------

    @property
    def elements(self) -> int:
        """The number of elements of all gradients."""
        return sum(self._sizes)

    @property
    def elements_sent(self) -> int:
        """The number of floats that a worker sends in the two rounds of a step."""
        return self._first.size + self._second.size

    @property
    def compressed(self) -> list[int]:
        """The indices of the gradients that are sent as factors."""
        return [matrix.index for matrix in self._matrices]

    def residual_norm(self) -> float:
        """The L2 norm of this worker's errors."""
        return math.sqrt(sum(float(np.square(m.error, dtype=np.float64).sum()) for m in self._matrices))

    def state_dict(self) -> dict[str, list[Floats]]:
        """Returns copies of this worker's errors and of the factors that the next step starts from."""
        return {
            "errors": [matrix.error.copy() for matrix in self._matrices],
            "bases": [matrix.basis.copy() for matrix in self._matrices],
        }

    def load_state_dict(self, state: Mapping[str, Sequence[Any]]) -> None:
        """Restores a state_dict(), on the same rank of a job with the same shapes and factor rank.

        Raises:
            ValueError: it has other shapes, or values that are not finite. Nothing has changed.
        """
        wanted = {name: [array.shape for array in arrays] for name, arrays in self.state_dict().items()}
        given = {name: [np.shape(array) for array in state.get(name, [])] for name in wanted}
        if given != wanted:
            raise ValueError(f"PowerSGD: the state has shapes {given}, expected {wanted}")
        for name in wanted:
            for index, array in zip(self.compressed, state[name], strict=True):
                if not np.isfinite(array).all():
                    raise ValueError(
                        f"PowerSGD: the state's {name} of gradient {index} are not all finite; load a state that "
                        "was saved before, or leave it out and begin without one"
                    )
        for matrix, error, basis in zip(self._matrices, state["errors"], state["bases"], strict=True):
            matrix.error[...] = error
            matrix.basis[...] = _orthonormal(np.asarray(basis, np.float32), instead=matrix.drawn)

    # -- inside ----------------------------------------------------------------------------------------

    def _declare(self, first: int, second: int) -> list[int]:
        prefix = f"power_sgd.{next(_made.setdefault(self._store, itertools.count()))}."
        keys = [(prefix + "p", [first], "float32"), (prefix + "q", [second], "float32")]
        declared = self._engine.declare([key for key in keys if key[1] != [0]])
        # Factors travel as they are, also in a store that is set to compress later.
        whole = Compression()
        self._engine.set_key_compression(declared, whole.spec, whole.reply)
        return declared

    def _start(self, elements: int, seed: int) -> Floats:
        """Factors drawn by rank 0: what another NumPy would draw from the same seed does not matter."""
        drawn = np.random.default_rng(seed).standard_normal(elements, np.float32)
        if elements > 0:
            self._engine.init([self._keys[1]], [drawn])
            self._store.wait_until(self._engine.pull(self._keys[1], drawn, 0).wait)
        return drawn

    def _arrays(self, gradients: Sequence[Any]) -> list[Any]:
        if len(gradients) != len(self._shapes):
            raise ValueError(f"PowerSGD: {len(gradients)} gradients given, expected {len(self._shapes)}")
        arrays = []
        for index, (gradient, shape) in enumerate(zip(gradients, self._shapes, strict=True)):
            # Of a tensor, its own memory seen by NumPy.
            array = gradient if isinstance(gradient, np.ndarray) else _memory_of(index, gradient)
            if array.dtype != np.float32 or array.shape != shape or not array.flags.writeable:
                raise ValueError(
                    f"PowerSGD: gradient {index} is {array.dtype} of shape {array.shape}, expected a writable "
                    f"float32 array of shape {shape}"
                )
            arrays.append(array)
        return arrays


def _require_sums(store: KVStore) -> None:
    if store.keeps_weights:
        raise ValueError(
            f"PowerSGD: set_optimizer() was called on the store {store.type!r}, which gives weights since and no sums; "
            "leave it out, and let an optimizer here use the means"
        )


def _factors(shape: tuple[int, ...], rank: int, min_rate: float) -> tuple[int, int, int] | None:
    """Returns rows, columns and rank of what is worth compressing."""
    if len(shape) < 2:
        return None
    n, m = shape[0], math.prod(shape[1:])
    used = min(n, m, rank)
    return (n, m, used) if (n + m) * used * min_rate < n * m else None


def _orthonormal(columns: Floats, instead: Floats | None = None) -> Floats:
    """Returns columns made orthonormal. One that depends on those before it becomes that of `instead`, or else 0.

    Source: Gram and Schmidt's way, as in the paper; twice, after Giraud, Langou and Rozloznik: The loss of
    orthogonality in the Gram-Schmidt orthogonalization process, 2005. In float64: from the same bits every rank must
    get the same directions, also where little of a column is left, and squares of small gradients must not vanish.
    """
    result = np.zeros(columns.shape)
    for index in range(columns.shape[1]):
        before = result[:, :index]
        for source in (columns, instead) if instead is not None else (columns,):
            column = source[:, index].astype(np.float64)
            least = _DEPENDENT * np.linalg.norm(column)
            for _ in range(2):
                column -= before @ (before.T @ column)
            rest = np.linalg.norm(column)
            if rest > least:
                result[:, index] = column / rest
                break
    return result.astype(np.float32)


def _memory_of(index: int, gradient: Any) -> Any:
    if not hasattr(gradient, "detach"):
        raise ValueError(
            f"PowerSGD: gradient {index} is a {type(gradient).__name__}, expected a NumPy or PyTorch array"
        )
    try:
        return gradient.detach().numpy()
    except TypeError as error:  # on another device, or of a type that NumPy lacks
        raise ValueError(
            f"PowerSGD: gradient {index} is {gradient.dtype} on {gradient.device} ({error}); expected float32 on "
            "the CPU"
        ) from None


def _fill_with_nan(arrays: Sequence[Any]) -> bool:
    for array in arrays:
        array[...] = np.nan
    return False
