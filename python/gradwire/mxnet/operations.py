"""Exchanges as operations of MXNet's engine: a call returns at once, and who reads an array waits for its exchange.

An exchange has two halves (engine.py): MXNet's thread hands the values over to gradwire, and a thread of ours tells
MXNet that the sum is there. So gradients leave while backward() still computes others, urgent ones first.

Threading: run() is for the thread that uses the store. Halves run on MXNet's threads and on one of ours, which ends
with close().
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from mxnet.base import _LIB, check_call

from gradwire import _core, kv
from gradwire.mxnet.engine import Completion, Endings, push, wait_for_all
from gradwire.stores import uncaught_error

__all__ = ["Operations"]

_open: weakref.WeakSet[Operations] = weakref.WeakSet()


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
        self._at_end: list[Callable[[], None]] = []
        self._closing = False
        self._endings = Endings(store.print_notices)
        _open.add(self)

    def run(
        self,
        begin: Callable[[], _core.Ticket | None],
        reads: Sequence[Any],
        writes: Sequence[Any],
        priority: int,
        end: Callable[[_core.Ticket], None] = lambda ticket: None,
    ) -> None:
        """Calls begin() once MXNet has computed reads and nobody uses writes; these are there when its ticket is done.

        Args:
            begin: starts the exchange and returns its ticket; None: it is over.
            reads, writes: NDArrays, an array in one of them only; together at least one.
            priority: MXNet's: the higher is begun first where several could.
            end: called with the ticket once it is done, before anybody reads writes; on any thread.

        Raises: what an earlier exchange has failed with.
        """
        self.raise_failure()
        if self._in_order:
            return self._run_now(begin, end, [*reads, *writes])
        return push(lambda completion: self._begin(begin, end, completion), reads, writes, priority)

    def _begin(
        self,
        begin: Callable[[], _core.Ticket | None],
        end: Callable[[_core.Ticket], None],
        completion: Completion,
    ) -> None:
        """The first half of an operation, on one of MXNet's threads."""
        ticket = None
        try:
            if not self._closing and self._failure is None:
                ticket = begin()
        except BaseException as error:  # nothing above this frame could take it
            self._failure = self._failure or error
        if ticket is None:
            completion.complete()
        else:
            self._endings.add(lambda seconds: self._wait(ticket, end, seconds), completion.complete)

    def at_end(self, look: Callable[[], None]) -> None:
        """Calls look() when the store is closed and all exchanges are over; what it raises is a failure."""
        self._at_end.append(look)

    def finish(self) -> None:
        """Waits until all exchanges are over. Raises what one has failed with."""
        wait_for_all()
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
            wait_for_all()
            self._look()
        self._closing = True
        try:
            self._store.close()
        finally:
            wait_for_all()  # MXNet must not call us when Python has ended
            self._endings.close()
            if finish and not self._has_told:
                self.raise_failure()

    def _look(self) -> None:
        try:
            for look in self._at_end if self._failure is None else ():
                look()
        except BaseException as error:
            self._failure = error

    def _run_now(
        self,
        begin: Callable[[], _core.Ticket | None],
        end: Callable[[_core.Ticket], None],
        arrays: Sequence[Any],
    ) -> None:
        for array in arrays:
            check_call(_LIB.MXNDArrayWaitToWrite(array.handle))
        ticket = begin()
        if ticket is not None:
            self._store.wait_until(ticket.wait)
            end(ticket)
            self._store.print_notices()

    def _wait(self, ticket: _core.Ticket, end: Callable[[_core.Ticket], None], seconds: float) -> bool:
        try:
            if not ticket.wait(seconds):
                return False
            end(ticket)
            return True
        except BaseException as error:
            self._failure = self._failure or error
            return True


def _close_all() -> None:
    """Ends what a script has left open: in order, or at once where an error has ended the script.

    What a script has read last may be of an exchange that has failed, and no call has followed to tell it: then this
    does, and the process fails.
    """
    finish = not uncaught_error.ended_the_script()
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
