"""The one session of a process, from init() to shutdown(): its store, its coordinator, its place among the ranks.

The store is the one by which this process has joined its job, or else is opened by the first init(). shutdown() leaves
it open, since a process joins its job once: a later init() goes on with it, and the process leaves at its end.
"""

from __future__ import annotations

import atexit
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gradwire import kv
from gradwire._core import MembershipChanged
from gradwire.horovod import knobs, topology
from gradwire.horovod.array_library import ArrayLibrary
from gradwire.horovod.coordinator import Coordinator
from gradwire.horovod.execution import Execution
from gradwire.horovod.handle import Handle
from gradwire.horovod.request import Key, Kind, Request
from gradwire.horovod.timeline import Timeline
from gradwire.horovod.topology import Topology
from gradwire.stores import connect
from gradwire.stores.default_store import require_company
from gradwire.stores.log import Log

# Of all sessions: a handle from before shutdown() is none of the operations after init().
_numbers = itertools.count()


@dataclass
class Session:
    """What init() has made. Attributes: see the module."""

    store: kv.KVStore
    topology: Topology
    coordinator: Coordinator
    timeline: Timeline
    library: ArrayLibrary  # whose arrays its operations are on
    handles: dict[int, Handle] = field(default_factory=dict)  # by what the user holds of them
    at_end: list[Callable[[], None]] = field(default_factory=list)  # what else ends with it
    _nameless: dict[tuple[int, Kind], Iterator[int]] = field(
        default_factory=lambda: defaultdict(itertools.count)
    )
    _joins: int = 0

    def name(self, kind: Kind, process_set: int) -> str:
        """A name for an operation that the user gave none: the n-th of its kind in its set since the last join() is the
        same on all ranks.
        """
        return f"noname.{self._joins}.{next(self._nameless[process_set, kind])}"

    def join(self) -> int:
        """Says that this rank has no data left; see submission.join()."""
        last: int = self.ask(Request("join", ""))
        self._joins += 1  # until here ranks have submitted unlike numbers of operations
        self._nameless.clear()
        return last

    def ask(self, request: Request, payload: Any = None) -> Any:
        """Submits an operation and waits for it.

        Raises: what Coordinator.submit() and the operation raise.
        """
        require_company("gradwire.horovod", self.store)
        return self.coordinator.submit(request, payload).wait(self.store)

    def submit(self, request: Request, payload: Any) -> int:
        """Submits an operation. Returns the number that poll() and synchronize() take."""
        require_company("gradwire.horovod", self.store)
        handle = self.coordinator.submit(request, payload)
        number = next(_numbers)
        self.handles[number] = handle
        return number


_session: Session | None = None


def begin(open_store: Callable[[], kv.KVStore], library: ArrayLibrary) -> None:
    """Begins the session, if there is none. A collective of all ranks.

    Args:
        open_store: what gives the store.
        library: of the arrays that operations are on.

    Raises:
        ValueError: a store without exact collectives; there is a session, on another library's arrays.
        gradwire.TimeoutError: not every rank appeared in time; names those missing.
    """
    global _session
    if _session is not None:
        require_library(library)
        return
    given = knobs.read()
    store = open_store()
    if connect.sums_in_one_order(store.type) or connect.applies_at_once(store.type):
        raise ValueError(
            f"gradwire.horovod: init: the store {store.type!r} has no exact collectives of any order; create "
            "'allreduce' or 'dist_sync' before init(), or none"
        )
    store, place = _meet(store)
    timeline = Timeline(lambda text: _tell(store, text))
    executor = Execution(store, library, timeline, given.fusion_bytes)
    coordinator = Coordinator(store, executor, timeline, cycle_seconds=given.cycle_seconds)
    _session = Session(store, place, coordinator, timeline, library)
    if given.timeline is not None:
        start_timeline(given.timeline, marks_cycles=given.marks_cycles)


def _meet(store: kv.KVStore) -> tuple[kv.KVStore, Topology]:
    """Returns this rank's place among all, in the generation of the job in which all live to hear of it."""
    while True:
        try:
            return store, topology.find(store)
        except MembershipChanged as change:
            store = rejoined(store, change)


def rejoined(store: kv.KVStore, change: MembershipChanged) -> kv.KVStore:
    """Joins the next generation of a job whose members have changed, and says so. A collective, between sessions.

    Raises: as kv.rejoin().
    """
    _tell(store, str(change))
    store = kv.rejoin(store)
    _tell(store, f"goes on as rank {store.rank} of {store.num_workers}")
    return store


def _tell(store: kv.KVStore, text: str) -> None:
    Log.of(store._settings, store.rank).say("warning", text)


def end() -> None:
    """Ends the session on this rank, and that of all others at their next operation. No-op where there is none."""
    global _session
    if _session is not None:
        ending, _session = _session, None
        for forget in ending.at_end:
            forget()
        ending.coordinator.shut_down()
        ending.timeline.stop()


def exists() -> bool:
    """Whether init() has been called, and shutdown() not since."""
    return _session is not None


def current() -> Session:
    """Returns the session.

    Raises: ValueError: there is none.
    """
    if _session is None:
        raise ValueError("gradwire.horovod has not been initialized; use hvd.init().")
    return _session


def require_library(library: ArrayLibrary) -> Session:
    """Returns the session.

    Raises: ValueError: there is none, or it is on another library's arrays.
    """
    if current().library is not library:
        raise ValueError(
            "gradwire.horovod: init() was called for another framework's tensors in this process; call its shutdown() "
            "on all ranks first"
        )
    return current()


def start_timeline(path: str, *, marks_cycles: bool) -> None:
    """Has rank 0 write its timeline to path from now on; the others write none."""
    now = current()
    if now.store.rank == 0:
        now.timeline.start(path, marks_cycles=marks_cycles)


def leave() -> None:
    """Ends the session at the end of the process, without waiting for other ranks. No-op where there is none."""
    global _session
    if _session is not None:
        ending, _session = _session, None
        ending.coordinator.leave()
        ending.timeline.stop()


atexit.register(leave)  # after kv's, so it runs before the store closes

__all__ = [
    "Key",
    "Session",
    "begin",
    "current",
    "end",
    "exists",
    "leave",
    "rejoined",
    "require_library",
    "start_timeline",
]
