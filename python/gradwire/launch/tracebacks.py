"""Finds the errors that ended a job's processes in the tracebacks on their stderr."""

from __future__ import annotations

import re

from gradwire.launch.child import Line

_BEGINS = "Traceback (most recent call last):"
_ERROR = re.compile(r"[A-Za-z_][\w.]*(: .*)?")
# Of a process that has waited for one that never came, or has heard of another's failure.
_OF_ANOTHER = re.compile(r"gradwire\.(_core\.)?(TimeoutError|MembershipChanged)\b")
_OF_TRANSPORT = re.compile(r"gradwire\.(_core\.)?TransportError\b")
_PROCESS = re.compile(r"\b(?:(?:worker|server|rank) \d+|scheduler)\b")  # a rank is a worker's
_LONGEST = 400  # characters


class Tracebacks:
    """Reads the lines of a job's processes, and keeps the last error of each."""

    def __init__(self) -> None:
        self._open: set[tuple[str, int | None]] = set()  # who is in the middle of one
        self._errors: dict[tuple[str, int | None], str] = {}

    def take(self, line: Line) -> None:
        """Reads the next line of a process."""
        who = (line.role, line.rank)
        if line.stream != "stderr":
            return
        if line.text.strip() == _BEGINS:
            self._open.add(who)
        elif who in self._open and _ERROR.fullmatch(line.text):
            self._open.discard(who)
            self._errors[who] = line.text[:_LONGEST]

    def of(self, role: str, rank: int | None) -> str | None:
        """Returns the error of a process, such as "ValueError: boom"; None if it wrote no traceback."""
        return self._errors.get((role, rank))

    def is_of_another(self, role: str, rank: int | None) -> bool:
        """Returns True if a process ended because another one failed.

        A TransportError then names that one. Else it is the process's own, such as an address that is not there to
        listen on.
        """
        error = self._errors.get((role, rank), "")
        if _OF_TRANSPORT.match(error):
            own = (f"{role} {rank}", f"rank {rank}")
            return any(name not in own for name in _PROCESS.findall(error))
        return _OF_ANOTHER.match(error) is not None

    def first_own(self, role: str) -> tuple[int | None, str] | None:
        """Returns rank and error of the first process of a role that ended with its own error; None if none did."""
        for (of_role, rank), error in self._errors.items():
            if of_role == role and not self.is_of_another(of_role, rank):
                return rank, error
        return None
