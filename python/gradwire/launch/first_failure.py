"""FirstFailure: which process failed first, and how: what a job says last, and what its exit code is.

Processes that are notified of a failure fail too, and some end before the one that caused it. Their tracebacks tell
which is which.

Threading: one thread at a time.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from gradwire.launch.tracebacks import Tracebacks

if TYPE_CHECKING:
    from gradwire.launch.child import Child, Line


class FirstFailure:
    """
    Attributes:
        child: the process that failed first; None: none did, or the job was stopped for another reason.
        cause: describes the failure, or what else stopped the job; None: nothing did.
        exit_code: of the job.
        interrupted: the signal that stopped the job, if any.
    """

    def __init__(self) -> None:
        self.child: Child | None = None
        self.cause: str | None = None
        self.exit_code = 0
        self.interrupted: signal.Signals | None = None
        self._tracebacks = Tracebacks()
        self._is_followed = False  # something was said after the failure that ends the job

    def take_line(self, line: Line) -> None:
        """Reads a line that a process of the job has written."""
        self._tracebacks.take(line)
        self.note_message()

    def note_message(self) -> None:
        """Says that the launcher has written a line."""
        self._is_followed = self.child is not None

    def begin(self, child: Child | None, cause: str, exit_code: int) -> None:
        """Says that the job fails. cause is written already. child: the process that failed, if it was one."""
        self.child, self.cause, self.exit_code = child, cause, exit_code

    def interrupt(self, given: signal.Signals) -> None:
        """Says that a signal stops the job. The first one counts."""
        if self.interrupted is None:
            self.interrupted, self.cause, self.exit_code = given, f"stopped by {given.name}", 128 + given

    def reconsider(self, child: Child, cause: str, exit_code: int, *, hears_late: bool) -> None:
        """Replaces the failure by a later one if that is the real cause.

        A process that was notified of another's failure may end before that one does: Python takes its time to end.
        Servers and the scheduler end with exit code 1 then. If other programs watch the processes, that is the only
        sign of any of them.

        Args:
            child, cause, exit_code: the later failure.
            hears_late: other programs watch the job's processes.
        """
        if self.child is None:
            return
        serves = self.child.role != "worker"
        has_heard = self._tracebacks.is_of_another(self.child.role, self.child.rank) or (
            serves and self.exit_code == 1
        )
        is_cause = has_heard and not self._tracebacks.is_of_another(child.role, child.rank)
        is_heard_late = hears_late and self.exit_code == 1 and exit_code != 1
        if (is_cause and child.role == "worker") or is_heard_late:
            self.child, self.cause, self.exit_code = child, cause, exit_code

    def last_line(self) -> str | None:
        """Returns what names the first failure, because messages of other processes since then follow from it. None
        where the failure was the last thing said, or a signal stopped the job.
        """
        if self.child is None or not self._is_followed or self.interrupted is not None:
            return None
        role, rank = self.child.role, self.child.rank
        name, error = self.child.name, self._tracebacks.of(role, rank)
        if (
            rank is None and (first := self._tracebacks.first_own(role)) is not None
        ):  # one child for all ranks
            name, error = f"{role} {first[0]}", first[1]
        how = f"{error}; see its traceback above"
        if error is None:
            how = f"it {str(self.cause).partition(f'(pid {self.child.pid}) ')[2]}"
        return f"{name} failed first: {how}"
