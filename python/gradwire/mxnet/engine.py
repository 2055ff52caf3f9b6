"""MXNet's engine from Python: operations that end later, on arrays that whoever reads them then waits for.

The engine knows which operations read and write an array, and runs each once those before it are done. push() hands it
one by ctypes, as Horovod and BytePS do by C++: nothing is compiled against MXNet.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, check_call

__all__ = ["Completion", "Endings", "push", "wait_for_all"]

_SLICE = 0.001  # seconds between looks at what is under way
_NOTICES = 1.0  # seconds between calls of each_second
_CPU_PRIORITIZED = 3  # mxnet/engine.h, FnProperty: its threads are not those that compute
_ERROR_BYTES = 64  # more than a std::runtime_error has in any library


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


class Completion:
    """The end of one operation, which complete() or fail() is called for once. Keeps its arrays alive until then."""

    def __init__(self, begin: Callable[[Completion], None], arrays: Sequence[Any]) -> None:
        self.begin = begin
        self._arrays = arrays
        self._over = _OnComplete()

    def take(self, on_complete: int) -> None:
        """Copies what MXNet hands to the operation's function."""
        ctypes.memmove(ctypes.byref(self._over), on_complete, ctypes.sizeof(_OnComplete))

    def complete(self) -> None:
        """What was written is there."""
        self._over.callback(self._over.engine, self._over.operation, None)

    def fail(self, why: str) -> None:
        """Who waits for what was to be written gets an MXNetError of this text, or what MXNet has registered for its
        first word and a colon; with NaiveEngine nobody does.
        """
        # MXNet takes a dmlc::Error, which adds nothing to std::runtime_error, and copies it.
        library = ctypes.CDLL("libstdc++.so.6")
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        library["_ZNSt13runtime_errorC1EPKc"](error, why.encode())
        self._over.callback(self._over.engine, self._over.operation, ctypes.addressof(error))
        library["_ZNSt13runtime_errorD1Ev"](error)


_pending: dict[int, Completion] = {}  # handed to MXNet, and not begun
_numbers = itertools.count(1)


def _begin(_: int, on_complete: int, number: int) -> None:
    """An operation's function, on one of MXNet's threads; with NaiveEngine on the one that has pushed it."""
    completion = _pending.pop(number)
    completion.take(on_complete)
    completion.begin(completion)


_begin_function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(_begin)


def push(
    begin: Callable[[Completion], None], reads: Sequence[Any], writes: Sequence[Any], priority: int
) -> None:
    """Has begin() called once MXNet has computed reads and nobody uses writes; these are there once it is completed.

    Args:
        begin: must not block, nor raise. Gets what it, or somebody later on any thread, ends the operation by.
        reads, writes: NDArrays; no memory is in both, and none twice in writes. Together at least one.
        priority: MXNet's: the higher is begun first where several could.
    """
    number = next(_numbers)
    _pending[number] = Completion(begin, [*reads, *writes])
    context, kind = _Context(1, 0), ctypes.c_int(_CPU_PRIORITIZED)  # cpu(0)
    check_call(
        _LIB.MXEnginePushAsyncND(
            *(_begin_function, ctypes.c_void_p(number), None, ctypes.byref(context)),
            *(_handles(reads), len(reads), _handles(writes), len(writes)),
            *(ctypes.byref(kind), ctypes.c_int(priority), b"gradwire", False),
        )
    )


def wait_for_all() -> None:
    """Waits for all that MXNet has to do; errors of the script's operations, of any type, are none of the caller's."""
    with contextlib.suppress(Exception):
        mx.nd.waitall()


def _handles(arrays: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.handle for array in arrays))


class Endings:
    """A thread that waits for what is under way, all at once, and ends each when it is over.

    Threading: add() from any thread; close() once, when nothing is added any more.
    """

    def __init__(self, each_second: Callable[[], None] = lambda: None) -> None:
        """
        Args:
            each_second: called on the thread about once a second while something is under way.
        """
        self._each_second = each_second
        self._added: queue.SimpleQueue[tuple[Callable[[float], bool], Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="gradwire-mxnet", daemon=True)
        self._thread.start()

    def add(self, wait: Callable[[float], bool], end: Callable[[], None]) -> None:
        """Has end() called once wait(seconds) has said True. Neither raises."""
        self._added.put((wait, end))

    def close(self) -> None:
        """Ends the thread; nothing may be under way."""
        self._added.put(None)
        self._thread.join()

    def _run(self) -> None:
        under_way: list[tuple[Callable[[float], bool], Callable[[], None]]] = []
        looked = time.monotonic()
        while True:
            arrived = [self._added.get()] if not under_way else []
            while not self._added.empty():
                arrived.append(self._added.get())
            if None in arrived:
                return
            under_way += [one for one in arrived if one is not None]
            under_way[0][0](_SLICE)
            over = [one for one in under_way if one[0](0)]
            under_way = [one for one in under_way if one not in over]
            for _, end in over:
                end()
            if time.monotonic() - looked > _NOTICES:
                looked = time.monotonic()
                self._each_second()
