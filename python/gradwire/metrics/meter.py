"""Meter: reads one store's stats() every few seconds, and gives the values to writers.

Reading asks nobody else: no server and no other rank. Only the residuals cost more than microseconds, one pass over
their memory, for which the store's own thread does nothing else. So they are read seldom enough to take at most
1/400 of the time.

Threading: any thread may call. A thread of its own samples, writes and closes writers, so that a slow disk does not
delay training. It ends with stop(), or with the process.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from gradwire.metrics import step_count
from gradwire.metrics.table import values_of
from gradwire.metrics.writer import Writer

_RESIDUALS_SHARE = 400  # of the time, one part is for reading residuals
_LONG_READ = 0.5  # seconds; residuals that take longer are not read once more at the end
_TRIES, _PAUSE = 25, 0.02  # seconds: residuals can be read between rounds only, so several moments are tried
_END_SECONDS = 10.0  # that stop() waits for the last sample to be written


class Store(Protocol):
    """What a Meter uses of a store."""

    meters: list[Any]
    measured_rank: int  # from 0

    @property
    def type(self) -> str:
        """The store's name."""

    def stats(self, servers: bool = False, *, residuals: bool = True) -> dict[str, Any]:
        """What the store has done."""

    def warn(self, text: str) -> None:
        """Logs a line."""


class Meter:
    """Samples a store and writes the values. gradwire.metrics.start() makes it.

    A value that cannot be read at some moment keeps its last reading.
    """

    def __init__(self, store: Store, writers: Sequence[Writer], interval: float | None) -> None:
        """Begins at once.

        Args:
            store: an open store, whose close() calls stop().
            writers: what gets the values.
            interval: seconds between two samples. None: samples are taken by write() alone.
        """
        self._store, self._writers, self._interval = store, writers, interval
        self._pid = os.getpid()
        self._stopping = threading.Event()
        self._writing = threading.Lock()
        self._known: dict[str, Any] = {}  # replaced whole
        self._merging = threading.Lock()
        self._warned: set[str] = set()
        self._residuals_due = 0.0  # time.monotonic()
        self._residuals_took = 0.0  # seconds
        step_count.watch()
        for writer in writers:
            writer.begin(store.measured_rank, store.type)
        store.meters.append(self)
        self._thread: threading.Thread | None = None
        if interval is not None:
            self._thread = threading.Thread(target=self._run, name="gradwire-metrics", daemon=True)
            self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether stop() is still to come, in the process that began it."""
        return not self._stopping.is_set() and os.getpid() == self._pid

    def write(self, step: int | None = None, *, servers: bool = False) -> None:
        """Takes a sample now and writes it, on the calling thread.

        It reads the residuals, one pass over their memory, if no round is in progress. If the Meter's own thread is
        writing, the values are kept for the next sample. Errors of writers are logged, once each, and not raised.

        Args:
            step: the training step by which TensorBoard and W&B plot. Default: the steps of the PyTorch optimizer.
            servers: also ask the servers for rounds_waited_for, slowest_rank and bytes_mirrored, and wait for them. One
                rank is enough. Default: False.

        Raises:
            gradwire.TransportError, gradwire.TimeoutError: servers were asked, and the job has failed.
        """
        if not self.is_running:
            return
        self._merge(self._store.stats(servers))
        self._write(step, self._writers)

    def stop(self) -> None:
        """Takes a last sample for what gradwire opened itself, closes that, and ends. The store's close() calls it.

        It waits at most a few seconds for a disk that does not answer.
        """
        if not self.is_running:
            return
        self._stopping.set()
        with contextlib.suppress(ValueError):
            self._store.meters.remove(self)
        if self._thread is None:
            self._close()
            return
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            names = ", ".join(writer.name for writer in self._writers)
            self._store.warn(
                f"metrics: the last values were not written within {_END_SECONDS:g} s ({names}); goes on without them"
            )

    # ---------------------------------------------------------------- on the Meter's own thread

    def _run(self) -> None:
        assert self._interval is not None
        self._sample(residuals=False)
        while not self._stopping.wait(self._interval):
            self._sample(residuals=time.monotonic() >= self._residuals_due)
        self._sample(residuals=self._residuals_took < _LONG_READ)
        self._close()

    def _sample(self, *, residuals: bool) -> None:
        try:
            self._merge(self._read(residuals))
        except Exception as error:  # the job has failed: its own calls say so
            self._warn_once("stats()", error)
        ended = self._stopping.is_set()
        self._write(None, [writer for writer in self._writers if writer.is_ours or not ended])

    def _read(self, residuals: bool) -> dict[str, Any]:
        for _ in range(_TRIES if residuals else 0):
            began = time.perf_counter()
            stats = self._store.stats()
            if stats["residual_norm"] is not None:
                self._residuals_took = time.perf_counter() - began
                self._residuals_due = time.monotonic() + _RESIDUALS_SHARE * self._residuals_took
                return stats
            if self._stopping.wait(_PAUSE):
                break
        return self._store.stats(residuals=False)

    # ---------------------------------------------------------------- on any thread

    def _merge(self, stats: dict[str, Any]) -> None:
        found = {name: value for name, value in stats.items() if value is not None}
        with self._merging:
            self._known = self._known | found

    def _write(self, step: int | None, writers: Sequence[Writer]) -> None:
        steps = step_count.steps()
        values = values_of(self._known | {"steps": steps})
        if not self._writing.acquire(
            blocking=False
        ):  # the disk is slow: the next sample has these values too
            return
        try:
            for writer in writers:
                try:
                    writer.write(values, (steps or 0) if step is None else step)
                except Exception as error:
                    self._warn_once(writer.name, error)
        finally:
            self._writing.release()

    def _close(self) -> None:
        for writer in self._writers:
            try:
                writer.close()
            except Exception as error:
                self._warn_once(writer.name, error)

    def _warn_once(self, name: str, error: Exception) -> None:
        if name not in self._warned:
            self._warned.add(name)
            self._store.warn(
                f"metrics: {name}: {type(error).__name__}: {error}; training goes on, and further errors of it are not "
                "logged"
            )
