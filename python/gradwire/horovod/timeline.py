"""Horovod's timeline: when each operation was negotiated and run, as a trace that chrome://tracing and Perfetto open.

The file is written line by line while the job runs, so that a job of any length takes no memory for it and one that is
killed leaves what it has done. Such a file lacks the last bracket, which the format allows and both viewers accept.

`gradwire run --timeline` shows more: every partition of every gradient, on all ranks and servers.

Source: Horovod's documentation, "Analyze performance": names of phases; "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from gradwire.horovod.request import Key

_MOST_LANES = 1 << 16  # a script may number its names for ever


class Timeline:
    """What happens on this rank, while start() has been called. Any thread."""

    def __init__(self, warn: Callable[[str], None] = lambda text: None) -> None:
        """
        Args:
            warn: called once with the reason if the file cannot be written any more. Default: nobody is told.
        """
        self._warn = warn
        self._lock = threading.Lock()
        self._file: TextIO | None = None
        self._marks_cycles = False
        self._lanes: dict[str, int] = {}
        self._newest_lane = 0
        self._began = 0

    def start(self, path: str, *, marks_cycles: bool) -> None:
        """Writes events to the file from now on; ends the file of an earlier start().

        Raises: OSError: the file cannot be written.
        """
        self.stop()
        with self._lock:
            # Buffered by line: a process that is killed leaves whole events.
            self._file = open(path, "w", buffering=1, encoding="utf-8")  # noqa: SIM115 (stop() closes it)
            self._marks_cycles = marks_cycles
            self._lanes, self._newest_lane, self._began = {}, 0, time.time_ns()
            start = {"start_time_since_epoch_in_micros": self._began // 1000}
            self._write("[" + self._event("clock", "M", 0, args=start))

    def stop(self) -> None:
        """Ends the file. Nothing where nothing was started."""
        with self._lock:
            self._write("\n]\n")
            self._close()

    def negotiation_begins(self, key: Key) -> None:
        """This rank has submitted the operation."""
        self._span("B", key, f"NEGOTIATE_{key.kind.upper()}")

    def negotiation_ends(self, key: Key) -> None:
        """All ranks have."""
        self._span("E", key, f"NEGOTIATE_{key.kind.upper()}")

    def execution_begins(self, key: Key) -> None:
        """Its data begin to travel."""
        self._span("B", key, key.kind.upper())

    def execution_ends(self, key: Key) -> None:
        """Its result is here; of a sum that has keys of the store, who waits for it has it."""
        self._span("E", key, key.kind.upper())

    def cycle_begins(self) -> None:
        """A round of negotiation."""
        with self._lock:
            if self._marks_cycles:
                self._note("CYCLE_START", "i", 0, s="g")

    def _span(self, phase: str, key: Key, name: str) -> None:
        with self._lock:
            if self._file is not None:
                self._note(name, phase, self._lane(f"{key.kind}.{key.name}"))

    def _lane(self, row: str) -> int:
        if row not in self._lanes:
            if len(self._lanes) == _MOST_LANES:
                del self._lanes[next(iter(self._lanes))]
            self._newest_lane += 1
            self._lanes[row] = self._newest_lane
            self._note("process_name", "M", self._newest_lane, args={"name": row})
        return self._lanes[row]

    def _note(self, event: str, phase: str, lane: int, **more: Any) -> None:
        self._write(",\n" + self._event(event, phase, lane, **more))

    def _event(self, event: str, phase: str, lane: int, **more: Any) -> str:
        microseconds = (time.time_ns() - self._began) // 1000
        return json.dumps({"name": event, "ph": phase, "ts": microseconds, "pid": lane, "tid": 0} | more)

    def _write(self, text: str) -> None:
        """A disk that is full ends the timeline, and not the job."""
        if self._file is None:
            return
        try:
            self._file.write(text)
        except OSError as error:
            self._warn(f"timeline {self._file.name!r} ends here, since it cannot be written: {error}")
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # of what could not be written, which _write() has reported
                self._file.close()
            self._file = None
