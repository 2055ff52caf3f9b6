"""Horovod's timeline: when each operation was negotiated and run, as a trace that chrome://tracing and Perfetto open.

`gradwire run --timeline` shows more: every partition of every gradient, on all ranks and servers.

Source: Horovod's documentation, "Analyze performance": names of phases; "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from gradwire.horovod.request import Key


class Timeline:
    """What happens on this rank, while start() has been called. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: Path | None = None
        self._marks_cycles = False
        self._events: list[dict[str, Any]] = []
        self._lanes: dict[str, int] = {}
        self._began = 0

    def start(self, path: str, *, marks_cycles: bool) -> None:
        """Notes events from now on; ends the file of an earlier start().

        Raises: OSError: the file cannot be written.
        """
        self.stop()
        with self._lock:
            Path(path).touch()  # what cannot be written at the end is said now
            self._file, self._marks_cycles = Path(path), marks_cycles
            self._events, self._lanes, self._began = [], {}, time.time_ns()
            self._note("clock", "M", 0, start_time_since_epoch_in_micros=self._began // 1000)

    def stop(self) -> None:
        """Writes the file. Nothing where nothing was started."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                lines = ",\n".join(json.dumps(event) for event in self._events)
                file.write_text(f"[{lines}]\n")

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
            if self._file is not None and self._marks_cycles:
                self._note("CYCLE_START", "i", 0, s="g")

    def _span(self, phase: str, key: Key, name: str) -> None:
        with self._lock:
            if self._file is None:
                return
            row = f"{key.kind}.{key.name}"
            if row not in self._lanes:
                self._lanes[row] = len(self._lanes) + 1
                self._note("process_name", "M", self._lanes[row], name=row)
            self._note(name, phase, self._lanes[row])

    def _note(self, event: str, phase: str, lane: int, **arguments: Any) -> None:
        microseconds = (time.time_ns() - self._began) // 1000
        head = {"name": event, "ph": phase, "ts": microseconds, "pid": lane, "tid": 0}
        scope = {"s": arguments.pop("s")} if "s" in arguments else {}
        self._events.append(head | scope | ({"args": arguments} if arguments else {}))
