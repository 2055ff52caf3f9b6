"""Exchanges as operations of MXNet's engine: a call returns at once, and who reads an array waits for its exchange.

MXNet's engine knows which operations read and write an array, and runs each once those before it are done. An exchange
is an operation of two halves: MXNet's thread hands the values over to gradwire, and a thread of ours tells MXNet that
the sum is there. So gradients leave while backward() still computes others, urgent ones first.

Threading: run() is for the thread that uses the store. Halves run on MXNet's threads and on one of ours, which ends
with close().
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import os
import queue
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, check_call

from gradwire import _core, kv

__all__ = ["Operations"]

_SLICE = 0.001  # seconds between looks at exchanges under way
_NOTICES = 1.0  # seconds between looks at what the engine has to say
_CPU_PRIORITIZED = 3  # mxnet/engine.h, FnProperty: its threads are not those that compute


class _Context(ctypes.Structure):  # mxnet/base.h, Context
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _OnComplete(
    ctypes.Structure
):  # mxnet/engine.h, CallbackOnComplete: how an operation says that it is over
    _fields_ = [
        ("callback", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)),
        ("engine", ctypes.c_void_p),
        ("operation", ctypes.c_void_p),
    ]


class _Operation:
    """One exchange; keeps its arrays alive."""

    def __init__(self, owner: Operations, begin: Callable[[], _core.Ticket | None], arrays: Any) -> None:
        self.owner = owner
        self.begin = begin
        self.arrays = arrays
        self.ticket: _core.Ticket | None = None
        self.over = _OnComplete()

    def complete(self) -> None:
        self.over.callback(self.over.engine, self.over.operation, None)


_open: weakref.WeakSet[Operations] = weakref.WeakSet()
_pending: dict[int, _Operation] = {}  # handed to MXNet, and not begun
_numbers = itertools.count(1)


def _begin(_: int, on_complete: int, number: int) -> None:
    """The first half, on one of MXNet's threads."""
    operation = _pending.pop(number)
    ctypes.memmove(ctypes.byref(operation.over), on_complete, ctypes.sizeof(_OnComplete))
    operation.owner.begin(operation)


_begin_function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(_begin)


class Operations:
    """The exchanges of one store.

    in_order: begins them in the order of the calls and waits for each, for stores in which a library sums, where every
    rank must push the same keys in the same order.
    """

    def __init__(self, store: kv.KVStore, *, in_order: bool) -> None:
        self._store = store
        self._in_order = in_order
        self._failure: BaseException | None = None
        self._has_told = False  # the script of the failure
        self._closing = False
        self._begun: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._finish_all, name="gradwire-mxnet", daemon=True)
        self._thread.start()
        _open.add(self)

    def run(
        self,
        begin: Callable[[], _core.Ticket | None],
        reads: Sequence[Any],
        writes: Sequence[Any],
        priority: int,
    ) -> None:
        """Calls begin() once MXNet has computed reads and nobody uses writes; these are there when its ticket is done.

        Args:
            begin: starts the exchange and returns its ticket; None: it is over.
            reads, writes: NDArrays, an array in one of them only; together at least one.
            priority: MXNet's: the higher is begun first where several could.

        Raises: what an earlier exchange has failed with.
        """
        self.raise_failure()
        if self._in_order:
            return self._run_now(begin, [*reads, *writes])
        number = next(_numbers)
        _pending[number] = _Operation(self, begin, [*reads, *writes])
        context, kind = _Context(1, 0), ctypes.c_int(_CPU_PRIORITIZED)  # cpu(0)
        check_call(
            _LIB.MXEnginePushAsyncND(
                *(_begin_function, ctypes.c_void_p(number), None, ctypes.byref(context)),
                *(_handles(reads), len(reads), _handles(writes), len(writes)),
                *(ctypes.byref(kind), ctypes.c_int(priority), b"gradwire", False),
            )
        )
        return None

    def begin(self, operation: _Operation) -> None:
        """The first half of an operation, on one of MXNet's threads."""
        try:
            if not self._closing and self._failure is None:
                operation.ticket = operation.begin()
        except BaseException as error:  # nothing above this frame could take it
            self._failure = self._failure or error
        if operation.ticket is None:
            operation.complete()
        else:
            self._begun.put(operation)

    def finish(self) -> None:
        """Waits until all exchanges are over. Raises what one has failed with."""
        _wait_for_all()
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raises what an exchange has failed with; from then on every call does."""
        if self._failure is not None:
            self._has_told = True
            raise self._failure

    @property
    def has_told(self) -> bool:
        """True once a failure was raised."""
        return self._has_told

    @property
    def is_closed(self) -> bool:
        """True once close() was called."""
        return self._closing

    def close(self, *, finish: bool) -> None:
        """Closes the store.

        Args:
            finish: once all exchanges are over; else those under way fail, and no other begins.

        Raises: finish: what an exchange has failed with, where nobody has been told.
        """
        _open.discard(self)
        if finish:
            _wait_for_all()
        self._closing = True
        try:
            self._store.close()
        finally:
            _wait_for_all()  # MXNet must not call us when Python has ended
            self._begun.put(None)
            self._thread.join()
            if finish and not self._has_told:
                self.raise_failure()

    def _run_now(self, begin: Callable[[], _core.Ticket | None], arrays: Sequence[Any]) -> None:
        for array in arrays:
            check_call(_LIB.MXNDArrayWaitToWrite(array.handle))
        ticket = begin()
        if ticket is not None:
            self._store.wait_until(ticket.wait)
            self._store.print_notices()

    def _finish_all(self) -> None:
        """The second halves, on our thread."""
        under_way: list[_Operation] = []
        looked = time.monotonic()
        while True:
            arrived = [self._begun.get()] if not under_way else []
            while not self._begun.empty():
                arrived.append(self._begun.get())
            if None in arrived:
                return
            under_way += [operation for operation in arrived if operation is not None]
            self._wait(under_way[0], _SLICE)
            under_way = [operation for operation in under_way if not self._finished(operation)]
            if time.monotonic() - looked > _NOTICES:
                looked = time.monotonic()
                self._store.print_notices()

    def _finished(self, operation: _Operation) -> bool:
        if not self._wait(operation, 0):
            return False
        operation.complete()
        return True

    def _wait(self, operation: _Operation, seconds: float) -> bool:
        assert operation.ticket is not None  # else it is not under way
        try:
            return operation.ticket.wait(seconds)
        except BaseException as error:
            self._failure = self._failure or error
            return True


def _handles(arrays: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.handle for array in arrays))


def _wait_for_all() -> None:
    with contextlib.suppress(
        mx.base.MXNetError
    ):  # of some operation of the script's, which has been told of it
        mx.nd.waitall()


def _close_all() -> None:
    """Ends what a script has left open: in order, or at once where an error has ended the script.

    What a script has read last may be of an exchange that has failed, and no call has followed to tell it: then this
    does, and the process fails.
    """
    finish = getattr(sys, "last_value", None) is None
    is_untold = False
    for operations in list(_open):
        knew = operations.has_told
        try:
            operations.close(finish=finish)
        except BaseException:
            traceback.print_exc()
            is_untold = is_untold or not knew
    if finish and is_untold:
        print(
            "gradwire.mxnet: an exchange failed that the script has not heard of: what it read last is no sum; call "
            "kv.barrier() before the results are used",
            file=sys.stderr,
        )
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # the code of an exit that has begun cannot be changed otherwise


atexit.register(_close_all)
