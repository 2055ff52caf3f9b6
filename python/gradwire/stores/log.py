"""What a worker's store reports on stderr: one line each, as text, or as JSON for programs that gather logs.

    gradwire: worker 2: key 'w' step 7 has waited 60 s for worker 1
    {"time":"2026-11-22T08:30:05.113Z","level":"warning","role":"worker","rank":2,"text":"key 'w' ..."}

GRADWIRE_LOG_LEVEL (or ps-lite's PS_VERBOSE) says from which level on, GRADWIRE_LOG_FORMAT how. gradwire-server reports
likewise (--log-level, --log-format). At debug so is each message that a worker or server sends or hears: its key,
bytes and peer, nothing of its contents; a timeline has how long it took.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, get_args

from gradwire.settings.definitions import LogLevel, Settings

_LEVELS: tuple[str, ...] = get_args(LogLevel)  # the most urgent first


@dataclass(frozen=True)
class Log:
    """A worker's."""

    rank: int
    level: LogLevel
    as_json: bool

    @classmethod
    def of(cls, values: Settings, rank: int) -> Log:
        """The log that the settings ask for."""
        return cls(rank, values.log_level, values.log_format == "json")

    def reports(self, level: LogLevel) -> bool:
        """Whether something that urgent is reported."""
        return _LEVELS.index(level) <= _LEVELS.index(self.level)

    def say(self, level: LogLevel, text: str, **fields: Any) -> None:
        """Reports, if the level is that urgent.

        Args:
            text: one line for people.
            fields: numbers and names that JSON has besides; text has them in words, if at all.
        """
        if self.reports(level):
            self._write(level, text, fields)

    def tell(self, text: str, **fields: Any) -> None:
        """Reports what a user wants to see at each level but "error"; fields as in say()."""
        if self.reports("warning"):
            self._write("info", text, fields)

    def _write(self, level: LogLevel, text: str, fields: dict[str, Any]) -> None:
        if self.as_json:
            now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            head = {"time": now, "level": level, "role": "worker", "rank": self.rank, "text": text}
            line = json.dumps(head | fields, separators=(",", ":"))
        else:
            line = f"gradwire: worker {self.rank}: {text}"
        print(line, file=sys.stderr, flush=True)
