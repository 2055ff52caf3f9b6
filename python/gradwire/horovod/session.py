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

from gradwire import joining, kv
from gradwire.horovod import knobs, topology
from gradwire.horovod.coordinator import Coordinator, Executor
from gradwire.horovod.handle import Handle
from gradwire.horovod.request import Key, Kind, Request
from gradwire.horovod.timeline import Timeline
from gradwire.horovod.topology import Topology

MakeExecutor = Callable[[kv.KVStore, Timeline, int], Executor]


# Of all sessions: a handle from before shutdown() is none of the operations after init().
_numbers = itertools.count()


@dataclass
class Session:
    """What init() has made. Attributes: see the module."""

    store: kv.KVStore
    topology: Topology
    coordinator: Coordinator
    timeline: Timeline
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
        return self.coordinator.submit(request, payload).wait(self.store)

    def submit(self, request: Request, payload: Any) -> int:
        """Submits an operation. Returns the number that poll() and synchronize() take."""
        handle = self.coordinator.submit(request, payload)
        number = next(_numbers)
        self.handles[number] = handle
        return number


_session: Session | None = None


def begin(open_store: Callable[[], kv.KVStore], make_executor: MakeExecutor) -> None:
    """Begins the session, if there is none. A collective of all ranks.

    Args:
        open_store: what gives the store.
        make_executor: what runs operations, of a store, a timeline and the bytes up to which sums are fused.

    Raises:
        ValueError: a store without exact collectives.
        gradwire.TimeoutError: not every rank appeared in time; names those missing.
    """
    global _session
    if _session is not None:
        return
    given = knobs.read()
    store = open_store()
    if joining.sums_in_one_order(store.type) or joining.applies_at_once(store.type):
        raise ValueError(
            f"gradwire.horovod: init: the store {store.type!r} has no exact collectives of any order; create "
            "'allreduce' or 'dist_sync' before init(), or none"
        )
    place = topology.find(store)
    timeline = Timeline()
    executor = make_executor(store, timeline, given.fusion_bytes)
    coordinator = Coordinator(store, executor, timeline, cycle_seconds=given.cycle_seconds)
    _session = Session(store, place, coordinator, timeline)
    if given.timeline is not None:
        start_timeline(given.timeline, marks_cycles=given.marks_cycles)


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


def start_timeline(path: str, *, marks_cycles: bool) -> None:
    """Has rank 0 write its timeline to path from now on; the others write none."""
    now = current()
    if now.store.rank == 0:
        now.timeline.start(path, marks_cycles=marks_cycles)


def _leave_at_exit() -> None:
    global _session
    if _session is not None:
        ending, _session = _session, None
        ending.coordinator.leave()
        ending.timeline.stop()


atexit.register(_leave_at_exit)  # after kv's, so it runs before the store closes

__all__ = ["Key", "Session", "begin", "current", "end", "exists", "start_timeline"]
