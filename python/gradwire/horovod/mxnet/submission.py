"""How operations on MXNet's NDArrays are submitted.

What has the shape of what is given (sums, broadcasts) is an operation of MXNet's engine: the call returns at once, it
is submitted when MXNet has computed its tensors, and who reads the result waits for it. What has another shape
(gathers, exchanges) waits, since MXNet wants to know shapes.

NDArrays on the host are read and written where they lie. Those of other devices, and results of groups, are copied by
MXNet: an operation may not write one memory twice, which a group of slices would have it do.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from gradwire.horovod import numpy_arrays, session
from gradwire.horovod.execution import Tensors
from gradwire.horovod.handle import Handle
from gradwire.horovod.mxnet import errors
from gradwire.horovod.negotiation import Response
from gradwire.horovod.process_sets import ProcessSet
from gradwire.horovod.request import Kind, Request, TensorSpec
from gradwire.horovod.session import Session
from gradwire.horovod.submission import identity_of
from gradwire.mxnet.engine import Completion, Endings, push
from gradwire.mxnet.memory import array_over, is_on_host, view_of

# Types that travel as wider ones, exactly.
_TRAVELS_AS = {"bool": "uint8"}
_TRAVELS = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")

_endings: Endings | None = None


def start(
    kind: Kind,
    tensors: Sequence[Any],
    *,
    name: str | None,
    process_set: ProcessSet,
    in_place: bool,
    priority: int,
    **agreed: Any,
) -> list[Any]:
    """Has MXNet's engine submit an operation once its tensors are computed.

    Args:
        kind: of operation.
        name: None: the next of its kind.
        in_place: results are written to the tensors.
        priority: the higher, the sooner MXNet begins it; and as Tensors.priority, the sooner it is sent.
        agreed: attributes of the request on which ranks must agree.

    Returns: NDArrays of the tensors' shapes, dtypes and devices: the tensors themselves, if in place. Who reads them
        waits, and gets a HorovodInternalError where the operation has failed.

    Raises:
        TypeError, ValueError: what was given.
        HorovodInternalError: the operation has failed; with MXNet's NaiveEngine alone, which knows no later.
    """
    now, request, staged = _asked(kind, tensors, name, process_set, agreed)
    if in_place and len(staged) == 1:
        outs, reads = staged, []
    else:
        outs, reads = [_empty_like(array) for array in staged], staged
    _Submission(now, request, reads, outs, priority).push()
    if in_place:
        for out, tensor in zip(outs, tensors, strict=True):
            _write(tensor, out)
        return list(tensors)
    return [_like(out, tensor) for out, tensor in zip(outs, tensors, strict=True)]


def ask(
    kind: Kind, tensors: Sequence[Any], *, name: str | None, process_set: ProcessSet, **agreed: Any
) -> tuple[list[Any], Response]:
    """Submits an operation whose results have shapes of their own, and waits for it.

    Args: as start().

    Returns: a new NDArray for each tensor, of its dtype and device; and what all ranks asked for.

    Raises:
        TypeError, ValueError: what was given; or an operation of this name is under way.
        HorovodInternalError: the operation has failed, on all ranks; says why.
    """
    now, request, staged = _asked(kind, tensors, name, process_set, agreed)
    for array in staged:
        array.wait_to_read()
    given = [view_of(array) for array in staged]
    results, response = now.ask(request, Tensors(given, [], lambda values, response: (values, response)))
    found = [_like(_array_of(values), tensor) for values, tensor in zip(results, tensors, strict=True)]
    return found, response


def require_tensors(verb: str, tensors: Sequence[Any]) -> None:
    """Raises:
    TypeError: one is no NDArray.
    ValueError: one is sparse, of a type that cannot travel, or has no dimensions; or there is none.
    """
    if not tensors:
        raise ValueError(f"hvd.{verb}: given no tensor; give a group of at least one")
    for tensor in tensors:
        if not isinstance(tensor, mx.nd.NDArray):
            raise TypeError(
                f"hvd.{verb}: given a {type(tensor).__name__}, expected an NDArray of MXNet; mx.nd.array() makes one"
            )
        if tensor.stype != "default":
            raise ValueError(
                f"hvd.{verb}: the tensor is {tensor.stype}; give tensor.tostype('default'), or train by "
                "gradwire.mxnet.patch() and the store 'dist_sync', which sums rows"
            )
        dtype = np.dtype(tensor.dtype).name
        if _TRAVELS_AS.get(dtype, dtype) not in _TRAVELS:
            raise ValueError(f"hvd.{verb}: Tensor type {dtype} is not supported; use tensor.astype()")
        if tensor.shape == ():
            raise ValueError(f"hvd.{verb}: a tensor without dimensions has no rows; give one of shape (1,)")


def spec_of(tensor: Any) -> TensorSpec:
    """Returns what an NDArray is as it travels; waits for nothing."""
    dtype = np.dtype(tensor.dtype).name
    return TensorSpec(_TRAVELS_AS.get(dtype, dtype), tuple(tensor.shape))


def _asked(
    kind: Kind, tensors: Sequence[Any], name: str | None, process_set: ProcessSet, agreed: dict[str, Any]
) -> tuple[Session, Request, list[Any]]:
    now = session.require_library(numpy_arrays)
    identity = identity_of(kind, process_set)
    require_tensors(kind, tensors)
    staged = [_staged(tensor) for tensor in tensors]
    specs = tuple(spec_of(tensor) for tensor in tensors)
    request = Request(
        kind, str(name) if name is not None else now.name(kind, identity), identity, specs, **agreed
    )
    return now, request, staged


class _Submission:
    """An operation that MXNet's engine will submit. Its methods run on MXNet's threads and one of ours, but for push().

    reads: NDArrays that are given; none: what is given lies in outs.
    """

    def __init__(
        self, now: Session, request: Request, reads: Sequence[Any], outs: Sequence[Any], priority: int
    ) -> None:
        self._now, self._request, self._reads, self._outs = now, request, reads, outs
        self._priority = priority
        self._caller = threading.get_ident()
        self._failure: BaseException | None = None  # that nobody can read from the arrays

    def push(self) -> None:
        push(self._begin, self._reads, self._outs, self._priority)
        if self._failure is not None:
            raise self._failure

    def _begin(self, completion: Completion) -> None:
        is_naive = threading.get_ident() == self._caller  # which holds the caller until the end
        try:
            targets = [view_of(out) for out in self._outs]
            given = [view_of(array) for array in self._reads] or targets
            tensors = Tensors(given, targets, lambda *_: None, self._priority)
            handle = self._now.coordinator.submit(self._request, tensors)
            if is_naive:
                handle.wait(self._now.store)
        except BaseException as error:  # nothing above this frame could take it
            self._failure = error if is_naive else None
            completion.fail(f"{errors.NAME}: {error}")
            return
        if is_naive:
            completion.complete()
        else:
            _thread().add(handle.ended, lambda: self._end(handle, completion))

    def _end(self, handle: Handle, completion: Completion) -> None:
        try:
            handle.wait(self._now.store)
        except BaseException as error:
            completion.fail(f"{errors.NAME}: {error}")
        else:
            completion.complete()


def _thread() -> Endings:
    global _endings
    if _endings is None:
        _endings = Endings()
    return _endings


def close() -> None:
    """Ends the thread, at the end of the process; nothing may be under way."""
    if _endings is not None:
        _endings.close()


def _staged(tensor: Any) -> Any:
    """Returns an NDArray as it travels: itself, where it lies on the host."""
    array = tensor.as_nd_ndarray()
    dtype = np.dtype(array.dtype).name
    if dtype in _TRAVELS_AS:
        array = array.astype(_TRAVELS_AS[dtype])
    return array if is_on_host(array) else array.as_in_context(mx.cpu())


def _empty_like(array: Any) -> Any:
    with mx.util.np_shape(True):  # without it MXNet takes 0 for a size that is not known yet
        return mx.nd.empty(array.shape, mx.cpu(), array.dtype)


def _array_of(values: Any) -> Any:
    if values.size == 0:
        with mx.util.np_shape(True):
            return mx.nd.empty(values.shape, mx.cpu(), values.dtype)
    return array_over(np.ascontiguousarray(values))


def _like(array: Any, tensor: Any) -> Any:
    """Returns a result in the type, on the device and of the class of what was given."""
    if array.dtype != tensor.dtype:
        array = array.astype(tensor.dtype)
    array = array.as_in_context(tensor.context)
    return array.as_np_ndarray() if isinstance(tensor, mx.np.ndarray) else array


def _write(tensor: Any, array: Any) -> None:
    """Has MXNet copy a result to what was given, if it is another array."""
    target = tensor.as_nd_ndarray()
    if array.handle.value != target.handle.value:
        (array if array.dtype == target.dtype else array.astype(target.dtype)).copyto(target)
