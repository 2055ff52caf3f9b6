"""Collectives: exact operations of all workers on arrays that are not gradients (metrics, masks, shards, indices).

Example:
    kv = gradwire.kv.create("allreduce")
    loss = kv.collectives.all_reduce(loss, op="average")
    rows = kv.collectives.all_gather(embeddings)      # one array a rank, of any length

Arrays are NumPy's or PyTorch's, on the CPU, of uint8, int8, int32, int64, float16, bfloat16 (PyTorch), float32,
float64, complex64 or complex128. Contiguous arrays are sent from and received into their own memory. Results are of the
same kind as the arguments. Every rank makes the same calls in the same order. If ranks differ (operation, dtype,
shape), or one has an array that cannot be sent (a sparse tensor, another dtype), all get a ValueError with the same
text, and the store stays usable. Any other error ends the store.

begin() runs collectives on another thread. What is called meanwhile waits for its turn.

Nothing is compressed. Results are computed in rank order, so all ranks get the same bits, whatever the placement.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from gradwire.stores.arrays import is_array, layout_of
from gradwire.stores.refusals import told_to_all

if TYPE_CHECKING:
    from gradwire import _core

__all__ = ["Begun", "Collectives"]

_Result = TypeVar("_Result")

_COMPLEX = {"complex64": "float32", "complex128": "float64"}  # two of which they are
_OPS = ("sum", "average", "min", "max", "product")
_DTYPES = ("uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64", *_COMPLEX)


class Collectives:
    """The collectives of one store: `KVStore.collectives`.

    The README of kvstore/ lists the bytes that each of N workers sends for an array of P bytes.
    """

    def __init__(self, engine: _core.Engine) -> None:
        self._engine = engine
        self._last: Begun[Any] | None = None

    def begin(self, call: Callable[[], _Result]) -> Begun[_Result]:
        """Runs calls of collectives on a thread of their own, once those that have begun before have ended.

        Every rank begins the same in the same order. All other collectives, and barriers, wait until they have ended.

        Args:
            call: makes the calls. It begins no others.

        Returns: what they run in; ask it for the result.
        """
        self._last = Begun(call, self._last)
        return self._last

    def await_begun(self, seconds: float | None = None) -> None:
        """Waits until all that has begun has ended; on its own threads it returns at once.

        Args:
            seconds: the longest wait. Default: as long as it takes, which the job's deadlines limit.
        """
        is_begun = isinstance(threading.current_thread(), Begun)
        if self._last is not None and not is_begun and self._last.wait(seconds):
            self._last = None

    def all_reduce(self, array: Any, op: str = "sum", out: Any = None) -> Any:
        """Combines the arrays of all ranks element by element.

        Args:
            array: any shape, the same on all ranks.
            op: "sum", "average" (floats only), "min", "max" or "product". float16 and bfloat16 are combined in float32
                and rounded once. Integers wrap. NaN wins in min and max. Complex numbers have "sum" and "average" only.
                Default: "sum".
            out: array to write to, of array's dtype and shape; may be array itself. Default: a new array.

        Returns: out or the new array, the same on every rank.

        Raises:
            ValueError: a bad op, dtype or out; "average" of integers; another op than "sum" and "average" of complex
                numbers; or ranks differ.
            gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
        """
        self.await_begun()
        with told_to_all(self._engine, "all_reduce"):
            given = _given("all_reduce", array)
            _require_op("all_reduce", op, given)
            result = _like(given, tuple(given.shape)) if out is None else _writable("all_reduce", out, given)
            memory = _bytes(given), _bytes(result)
        self._engine.collective_all_reduce(
            *memory, _real_dtype(given), op, _agreed(given, shape=tuple(given.shape))
        )
        return result if out is None else out

    def reduce_scatter(self, array: Any, op: str = "sum") -> Any:
        """As all_reduce(), but each rank gets only its rows: the rank-th of near-equal parts, cut as np.array_split
        does.

        Args:
            array: at least one dimension, the same shape on all ranks; cut along the first.
            op: as in all_reduce(). Default: "sum".

        Returns: a new array with this rank's rows.

        Raises:
            ValueError, gradwire.TransportError, gradwire.TimeoutError: as all_reduce().
        """
        self.await_begun()
        with told_to_all(self._engine, "reduce_scatter"):
            given = _given("reduce_scatter", array)
            _require_op("reduce_scatter", op, given)
            row = _row_shape("reduce_scatter", given)
            rows, longer = divmod(given.shape[0], self._engine.num_workers)
            result = _like(given, (rows + (self._engine.rank < longer), *row))
            memory = _bytes(given), _bytes(result)
        self._engine.collective_reduce_scatter(
            *(*memory, _real_dtype(given), op, _numbers(given) * math.prod(row)),
            _agreed(given, shape=tuple(given.shape)),
        )
        return result

    def broadcast(self, array: Any, root: int = 0) -> Any:
        """Overwrites the arrays of all ranks with root's, in place.

        Args:
            array: writable and contiguous; the same dtype and shape on all ranks.
            root: the rank whose array all ranks get. Default: 0.

        Returns: array.

        Raises:
            ValueError, gradwire.TransportError, gradwire.TimeoutError: as all_reduce().
        """
        self.await_begun()
        with told_to_all(self._engine, "broadcast"):
            target = _writable("broadcast", array, array)
            _require_rank("broadcast", root, self._engine.num_workers)
            memory = _bytes(target)
        self._engine.collective_broadcast(
            memory, _real_dtype(target), root, _agreed(target, shape=tuple(target.shape))
        )
        return array

    def all_gather(self, array: Any) -> list[Any]:
        """Gives every rank the arrays of all ranks.

        Args:
            array: any shape; ranks may differ in the first dimension only.

        Returns: one array per rank, in rank order: views of one block of memory.

        Raises:
            ValueError, gradwire.TransportError, gradwire.TimeoutError: as all_reduce().
        """
        self.await_begun()
        with told_to_all(self._engine, "all_gather"):
            given = _given("all_gather", array)
            row = _row_shape("all_gather", given) if given.shape else None
            memory = _bytes(given)
        counts, raw = self._engine.collective_all_gather(
            memory, _real_dtype(given), _agreed(given, row_shape=row)
        )
        return _split(given, counts, raw, row)

    def all_to_all(self, arrays: Sequence[Any]) -> list[Any]:
        """Gives rank d the d-th array of every rank.

        Args:
            arrays: one per rank, all of one dtype; they may differ in the first dimension only.

        Returns: the arrays that each rank had for this one, in rank order: views of one block of memory.

        Raises:
            ValueError: not one array per rank; or arrays differ in dtype or in the shape of a row.
            gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
        """
        self.await_begun()
        with told_to_all(self._engine, "all_to_all"):
            given = [_given("all_to_all", array) for array in arrays]
            if len(given) != self._engine.num_workers:
                raise ValueError(
                    f"all_to_all: {len(given)} arrays given, expected one for each of {self._engine.num_workers} ranks"
                )
            rows = [_row_shape("all_to_all", array) for array in given]
            kinds = [(_dtype(array), row) for array, row in zip(given, rows, strict=True)]
            if len(set(kinds)) > 1:
                raise ValueError(f"all_to_all: arrays differ in dtype or in the shape of a row: {kinds}")
            memory = [_bytes(array) for array in given]
        counts, raw = self._engine.collective_all_to_all(
            memory, _real_dtype(given[0]), _agreed(given[0], row_shape=rows[0])
        )
        return _split(given[0], counts, raw, rows[0])

    def barrier(self) -> None:
        """Waits until every rank has called it."""
        self.await_begun()
        self._engine.barrier()


class Begun(threading.Thread, Generic[_Result]):
    """Collectives that run on a thread of their own. Collectives.begin() makes it."""

    def __init__(self, call: Callable[[], _Result], before: Begun[Any] | None) -> None:
        # A daemon, since a job that has failed may leave it waiting.
        super().__init__(name="gradwire collectives", daemon=True)
        self._call: Callable[[], _Result] | None = call
        self._before = before
        self._outcome: tuple[_Result] | BaseException | None = None
        # For join(): one that Ctrl-C has ended takes the thread for ended (Python 3.11).
        self._has_ended = threading.Event()
        self.start()

    def run(self) -> None:
        """What the thread does; start() has been called."""
        before, self._before = self._before, None
        if before is not None:
            before._has_ended.wait()
        call, self._call = self._call, None
        assert call is not None
        try:
            self._outcome = (call(),)
        except BaseException as error:
            self._outcome = error
        self._has_ended.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until the calls have ended; on the main thread Ctrl-C ends the process, as in any collective.

        Args:
            seconds: the longest wait. Default: as long as it takes, which the job's deadlines limit.

        Returns: whether they have ended.
        """
        with _interrupt_ends():
            return self._has_ended.wait(seconds)

    def result(self) -> _Result:
        """Waits for what the call returns, or raises its error."""
        self.wait()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome[0]


@contextlib.contextmanager
def _interrupt_ends() -> Iterator[None]:
    """Has Ctrl-C end the process, where this is the main thread and Ctrl-C is not ignored."""
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or handler in (None, signal.SIG_IGN):  # None: not Python's
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _agreed(array: Any, **settings: object) -> str:
    """Settings as the engine compares them over the ranks, beside what it takes of an array."""
    if _dtype(array) in _COMPLEX:
        settings["numbers"] = "complex"
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _dtype(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def _real_dtype(array: Any) -> str:
    """What the engine sums."""
    return _COMPLEX.get(_dtype(array), _dtype(array))


def _numbers(array: Any) -> int:
    """How many of those an element is."""
    return 2 if _dtype(array) in _COMPLEX else 1


def _require_rank(verb: str, root: Any, workers: int) -> None:
    if not isinstance(root, int | np.integer) or not 0 <= root < workers:
        raise ValueError(f"{verb}: root={root!r} is not a worker rank; expected 0 to {workers - 1}")


def _require_op(verb: str, op: str, array: Any) -> None:
    if op not in _OPS:
        raise ValueError(f"{verb}: unknown op {op!r}; valid are {', '.join(_OPS)}")
    if _dtype(array) in _COMPLEX and op not in ("sum", "average"):
        raise ValueError(f"{verb}: op={op!r} of {_dtype(array)}, expected 'sum' or 'average'")


def _checked(verb: str, array: Any) -> Any:
    """A NumPy array, or a tensor without its history."""
    if not is_array(array):
        raise TypeError(f"{verb}: given a {type(array).__name__}, expected a NumPy or PyTorch array")
    if _dtype(array) not in _DTYPES:
        raise ValueError(f"{verb}: dtype {_dtype(array)} is not one of {', '.join(_DTYPES)}")
    if isinstance(array, np.ndarray | np.generic):
        return np.asarray(array)
    if layout := layout_of(array):
        raise ValueError(f"{verb}: given a {layout} tensor, expected a dense one; give tensor.to_dense()")
    if array.device.type != "cpu":
        raise ValueError(f"{verb}: the tensor is on {array.device}; give a copy on the CPU, tensor.cpu()")
    return array.detach()


def _is_contiguous(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return bool(array.flags.c_contiguous)
    return array.is_contiguous() and not _is_lazy(array)


def _is_lazy(array: Any) -> bool:
    """True for a tensor whose memory holds its numbers' conjugates or negatives, as after conj()."""
    return not isinstance(array, np.ndarray) and bool(array.is_conj() or array.is_neg())


def _given(verb: str, array: Any) -> Any:
    """An array to read, contiguous."""
    checked = _checked(verb, array)
    if _is_contiguous(checked):
        return checked
    if isinstance(checked, np.ndarray):
        return checked.copy(order="C")
    return checked.resolve_conj().resolve_neg().contiguous()


def _writable(verb: str, out: Any, like: Any) -> Any:
    """An array to write to in its own memory."""
    target = _checked(verb, out)
    if isinstance(out, np.generic) or (isinstance(target, np.ndarray) and not target.flags.writeable):
        raise ValueError(f"{verb}: the array to write to is read-only; give a writable one")
    if _is_lazy(target):
        raise ValueError(
            f"{verb}: the array to write to is a lazy view of conjugates or negatives, as conj() gives; give a tensor "
            "of its own, such as out.resolve_conj().resolve_neg()"
        )
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
    for numbers in counts:
        count = numbers // _numbers(like)
        shape = () if row is None else (count // math.prod(row), *row)
        arrays.append(flat[at : at + count].reshape(shape))
        at += count
    return arrays
