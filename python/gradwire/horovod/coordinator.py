"""Coordinator: the thread that tells the other ranks what this one asks for, and runs what all have asked for.

It alone makes the store's collectives while it lives, so these come in one order on all ranks. A round is an
all-gather of announcements (negotiation.py). A rank enters one when it has something to ask for, or waits for
something: nothing of all ranks can become ready without it, so a rank that is idle costs nothing, and there is no
cycle time. Only where there are process sets, whose members may need a rank that has nothing to do with them, does
every rank keep entering rounds.

What has waited for `slow_warning` seconds is named on stderr with the ranks that have not submitted it, and after
`slow_abort` it fails. A rank that submits nothing enters no round, and holds up the others' in silence: of that a
second thread tells, which knows no more than what this rank has submitted itself.

Threading: submit() and shut_down() from any thread. It ends with shut_down(), leave(), or the job.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gradwire import kv
from gradwire._core import MembershipChanged
from gradwire.horovod.errors import HorovodInternalError
from gradwire.horovod.handle import Handle
from gradwire.horovod.negotiation import Negotiation, Response
from gradwire.horovod.request import Announcement, Key, Request
from gradwire.horovod.timeline import Timeline
from gradwire.settings import definitions as settings
from gradwire.stores import uncaught_error
from gradwire.stores.log import Log

_LONGEST_PAUSE = 0.008  # seconds between rounds that bring nothing; the first pause is the cycle time


class Executor(Protocol):
    """What runs operations, on the coordinator's thread."""

    def execute(self, responses: Sequence[Response], handles: Mapping[Key, Handle]) -> None:
        """Runs them, none of which has an error, and ends the handles that this rank has of them.

        Raises: what ends the job. What only one operation fails with is given to its handle.
        """


class Coordinator:
    """The coordinator of one rank. All ranks make theirs at the same place."""

    def __init__(
        self, store: kv.KVStore, executor: Executor, timeline: Timeline, *, cycle_seconds: float
    ) -> None:
        """
        Args:
            store: whose engine carries all; nobody else may make a collective of it meanwhile.
            cycle_seconds: pause before a round that is entered only to hear of the others.
        """
        self.timeline = timeline
        self._store = store
        self._executor = executor
        self._cycle = cycle_seconds
        self._settings = settings.read()
        self._log = Log.of(self._settings, store.rank)
        self._negotiation = Negotiation(store.num_workers)
        self._changed = threading.Condition()
        self._new: list[Request] = []
        self._handles: dict[Key, Handle] = {}  # that wait for other ranks
        self._under_way: dict[Key, Handle] = {}  # for which nobody is awaited any more
        self._since: dict[Key, float] = {}
        self._warned: set[Key] = set()
        self._leaves = False
        self._failure: BaseException | None = None  # why it has ended
        self._fatal: BaseException | None = None  # likewise, where no rank has shut down
        self._quiet_rounds = 0
        self._is_in_a_round = False  # in which other ranks are awaited, who may be busy elsewhere
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gradwire-horovod", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch_rounds, name="gradwire-horovod-watch", daemon=True).start()

    @property
    def job_has_failed(self) -> bool:
        """Whether it has ended for good: not because a rank has shut down, or the job's members have changed, after
        which another may follow."""
        return self._fatal is not None and self.change is None

    @property
    def change(self) -> MembershipChanged | None:
        """Why it has ended, where workers have died, or wait to be let in, in a job that goes on."""
        return self._fatal if isinstance(self._fatal, MembershipChanged) else None

    def submit(self, request: Request, payload: Any = None) -> Handle:
        """Asks for an operation. Returns at once.

        Raises:
            ValueError: one of this name is under way.
            HorovodInternalError: the coordinator has ended; says why.
        """
        with self._changed:
            if self._failure is not None:
                raise HorovodInternalError(f"{request.key}: {self._failure}") from self._failure
            if self._is_under_way(request.key):
                raise ValueError(
                    f"{request.key} was submitted before and has not ended; synchronize() it first, or give this one "
                    "another name"
                )
            handle = Handle(request, payload)
            self._handles[request.key] = handle
            self._since[request.key] = time.monotonic()
            self._new.append(request)
            self.timeline.negotiation_begins(request.key)
            self._changed.notify()
        return handle

    def shut_down(self) -> None:
        """Tells all ranks that this one leaves, which ends every rank's coordinator; waits until they have heard, and
        for what is under way, to which all have given their part. What is not ready by then fails on all of them.
        """
        with self._changed:
            self._leaves = True
            self._changed.notify()
        self._store.wait_until(self._has_ended)
        for handle in self._under_way.values():
            self._store.wait_until(handle.ended)

    def leave(self) -> None:
        """Ends it at the end of the process, without waiting for ranks that are busy elsewhere, which hear that this
        one has left the job; but for what is under way, to which all have given their part.
        """
        self._ended.set()
        ending = HorovodInternalError("the process is ending")
        with self._changed:
            self._failure = self._failure or ending
            is_awaited = self._is_in_a_round
            self._changed.notify()
        if is_awaited:
            self._thread.join(_LONGEST_PAUSE)
        if is_awaited and self._thread.is_alive():
            self._store.engine.close(uncaught_error.in_words())
        self._thread.join(self._settings.slow_abort)
        self._end(ending)
        for handle in self._under_way.values():
            handle.ended(self._settings.slow_abort)

    def _has_ended(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _is_under_way(self, key: Key) -> bool:
        if (sent := self._under_way.get(key)) is not None and sent.done():
            del self._under_way[key]
        return key in self._handles or key in self._under_way

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while self._await_reason():
                self._round()
        except BaseException as error:
            # A rank that has failed where others have not would leave them waiting: its leaving tells them. Before
            # anybody here hears of it, since an engine must not be closed by two at once.
            with contextlib.suppress(Exception):
                self._store.engine.close()
            self._fatal = error
            self._end(error)

    def _await_reason(self) -> bool:
        """Waits until there is a reason for a round; False: it has ended."""
        with self._changed:
            while self._failure is None and not self._new and not self._leaves:
                if not self._handles and len(self._negotiation.process_sets) == 1:
                    self._changed.wait()  # nothing to hear of
                elif self._quiet_rounds == 0:
                    break
                else:
                    self._changed.wait(min(self._cycle * 2 ** min(self._quiet_rounds, 10), _LONGEST_PAUSE))
                    break
            return self._failure is None

    def _round(self) -> None:
        with self._changed:
            if self._failure is not None:  # leave(), which awaits no round that it has not seen
                return
            announced, self._new = Announcement(self._new, self._leaves), []
            self._is_in_a_round = True
        self.timeline.cycle_begins()
        blobs = self._store.engine.all_gather("horovod", announced.encode())
        with self._changed:
            self._is_in_a_round = False
            if self._failure is not None:  # leave()
                return
        everyone = [Announcement.decode(blob) for blob in blobs]
        responses = self._negotiation.take([each.requests for each in everyone])
        news = any(each.requests for each in everyone)
        self._quiet_rounds = 0 if news or responses else self._quiet_rounds + 1
        self._settle(responses)
        if leaving := [rank for rank, each in enumerate(everyone) if each.leaves]:
            self._end(HorovodInternalError(f"rank {leaving[0]} has shut down; init() again on all ranks"))
        elif self._quiet_rounds:
            self._watch_the_slow()

    def _settle(self, responses: Sequence[Response]) -> None:
        with self._changed:
            handles = {r.key: self._handles.pop(r.key) for r in responses if r.key in self._handles}
            self._under_way |= handles
            for key in handles:
                self._since.pop(key)
                self._warned.discard(key)
        for key in handles:
            self.timeline.negotiation_ends(key)
        to_run = []
        for response in responses:
            handle = handles.get(response.key)
            if response.error is None and not response.is_gathered:
                to_run.append(response)
            elif handle is not None and response.error is not None:
                handle.fail(HorovodInternalError(response.error))
            elif handle is not None:
                handle.complete(lambda: None)
        self._executor.execute(to_run, handles)
        with self._changed:
            for key in [key for key, handle in self._under_way.items() if handle.done()]:
                del self._under_way[key]

    def _watch_the_slow(self) -> None:
        now = time.monotonic()
        for key, (asked, missing) in self._negotiation.missing().items():
            waited = now - self._since.get(key, now)
            told = (
                f"{key} has waited {waited:.0f} s: ranks {asked} have submitted it, ranks {missing} have not"
            )
            if waited > self._settings.slow_abort:
                raise HorovodInternalError(f"{told}; submit it on all of them")
            with self._changed:
                self._warn(key, waited, told)

    def _watch_rounds(self) -> None:
        """The second thread: warns of what waits in a round that another rank does not enter."""
        while not self._ended.wait(self._settings.slow_warning / 4):
            with self._changed:
                now = time.monotonic()
                for key, since in self._since.items() if self._is_in_a_round else ():
                    self._warn(
                        key,
                        now - since,
                        f"{key} has waited {now - since:.0f} s: rank {self._store.rank} has submitted it, and another "
                        "rank submits nothing at all; every rank that waits says so",
                    )

    def _warn(self, key: Key, waited: float, told: str) -> None:
        """Warns once of each operation that waits too long. self._changed is held."""
        if waited > self._settings.slow_warning and key not in self._warned:
            self._warned.add(key)
            self._log.say("warning", told)

    def _end(self, error: BaseException) -> None:
        self._ended.set()
        with self._changed:
            self._failure = self._failure or error
            handles = [*self._handles.values(), *self._under_way.values()]
            self._handles.clear()
        for handle in handles:
            failed = HorovodInternalError(f"{handle.request.key}: {error}")
            failed.__cause__ = error
            handle.fail(failed)
