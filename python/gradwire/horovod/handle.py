"""Handle: an operation that a rank has submitted, from its submission to its result."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from gradwire import _core, kv
from gradwire.horovod.errors import HorovodInternalError
from gradwire.horovod.request import Request


class Handle:
    """Made by Coordinator.submit(). The coordinator's thread ends it; any thread may ask and wait.

    Attributes:
        request: what was asked for.
        payload: what the executor needs besides: this rank's tensors.
    """

    def __init__(self, request: Request, payload: Any) -> None:
        self.request = request
        self.payload = payload
        self._negotiated = threading.Event()
        self._tickets: Sequence[_core.Ticket] = ()
        self._result: Callable[[], Any] = lambda: None
        self._error: BaseException | None = None

    def complete(self, result: Callable[[], Any], tickets: Sequence[_core.Ticket] = ()) -> None:
        """Ends it. result: called by who waits, on his thread, when all tickets are done."""
        self._result, self._tickets = result, tickets
        self._negotiated.set()

    def fail(self, error: BaseException) -> None:
        """Ends it with an error, unless it has ended."""
        if not self._negotiated.is_set():
            self._error = error
            self._negotiated.set()

    def done(self) -> bool:
        """Whether wait() would return at once."""
        return self._negotiated.is_set() and all(ticket.done for ticket in self._tickets)

    def ended(self, seconds: float) -> bool:
        """Waits for so long. Returns whether wait() would now return, or raise, at once."""
        if not self._negotiated.wait(seconds):
            return False
        for ticket in self._tickets:
            with contextlib.suppress(Exception):  # wait() raises it
                if not ticket.wait(seconds):
                    return False
        return True

    def wait(self, store: kv.KVStore) -> Any:
        """Returns the result.

        Raises: what the operation failed with. Can be interrupted by Ctrl-C.
        """
        store.wait_until(self._negotiated.wait)
        for ticket in self._tickets:
            try:
                store.wait_until(ticket.wait)
            except (ConnectionError, TimeoutError) as error:
                raise HorovodInternalError(f"{self.request.key}: {error}") from error
        if self._error is not None:
            raise self._error
        return self._result()
