"""Codec time of the full size, slept before a piece is pushed: the pieces of this replay are too small to cost it.

A piece passes two stages on its way, each one piece at a time: this worker's codec (encode, and the decode of the
answer), most urgent first, and its server (decode_sum and encode), in order of arrival. The engine has no place to
sleep in a server, nor between an answer and its delivery, so all stages stand before the wire here. Where every stage
takes a constant time for a piece, the order of stages in a line does not change when pieces leave it (Friedman,
"Reduction methods for tandem queuing systems", Operations Research 13, 1965); pieces here are equal but for short
ones. All workers push a piece at about the same time, so each can keep the clock of every server by itself.

Threading: Lanes is used by one thread at a time; a Sender has a thread of its own, which ends with close().
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_SLACK = 2e-4  # seconds: what is due so soon is due now, since no sleep is more exact


@dataclass(frozen=True)
class Job:
    """One piece of a key in one step. A lower urgency goes first. The seconds are its stages'."""

    key: int
    urgency: int
    piece: int
    server: int
    ready_at: float
    codec_seconds: float
    server_seconds: float


class Lanes:
    """Says when each job has passed its stages. Knows no clock: every call is told what time it is."""

    def __init__(self, servers: int) -> None:
        self._codec_free_at = 0.0
        self._server_free_at = [0.0] * servers
        self._waiting: list[tuple[int, int, Job]] = []
        self._served: list[tuple[float, int, Job]] = []
        self._numbers = itertools.count()

    def add(self, job: Job) -> None:
        heapq.heappush(self._waiting, (job.urgency, next(self._numbers), job))

    def advance(self, now: float) -> list[Job]:
        """Returns the jobs that have passed both stages by now, and were not returned before."""
        while self._waiting and self._codec_free_at <= now + _SLACK:
            job = heapq.heappop(self._waiting)[2]
            self._codec_free_at = max(self._codec_free_at, job.ready_at) + job.codec_seconds
            free_at = max(self._server_free_at[job.server], self._codec_free_at) + job.server_seconds
            self._server_free_at[job.server] = free_at
            heapq.heappush(self._served, (free_at, next(self._numbers), job))
        passed = []
        while self._served and self._served[0][0] <= now + _SLACK:
            passed.append(heapq.heappop(self._served)[2])
        return passed

    def next_at(self) -> float | None:
        """Returns when advance() will have something to do; None: when something is added."""
        times = [self._codec_free_at] if self._waiting else []
        if self._served:
            times.append(self._served[0][0])
        return min(times, default=None)


class Sender:
    """Hands jobs to push() once they have passed their stages.

    push: called in the Sender's thread. What it raises ends the Sender, and is raised by the next add().
    """

    def __init__(self, servers: int, push: Callable[[Job], None]) -> None:
        self._lanes = Lanes(servers)
        self._push = push
        self._changed = threading.Condition()
        self._closed = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="replay-sender", daemon=True)
        self._thread.start()

    def add(self, jobs: Iterable[Job]) -> None:
        if self.failure is not None:
            raise self.failure
        with self._changed:
            for job in jobs:
                self._lanes.add(job)
            self._changed.notify()

    def close(self) -> None:
        """Ends the thread; what still waits is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while (jobs := self._next()) is not None:
                for job in jobs:
                    self._push(job)
        except BaseException as error:  # told to whoever adds or waits
            self.failure = error

    def _next(self) -> list[Job] | None:
        """Waits for jobs that have passed; None: closed."""
        with self._changed:
            while not self._closed:
                now = time.perf_counter()
                if jobs := self._lanes.advance(now):
                    return jobs
                at = self._lanes.next_at()
                self._changed.wait(None if at is None else max(0.0, at - now))
            return None
