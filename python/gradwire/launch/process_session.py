"""Signals every process of a session. Run as a program, it is the guard of a job (child.Guard).

Groups would not do: mpirun gives each of its ranks a group of its own, in mpirun's session.

As a program it runs by itself: only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable

_LOOKS = 10  # for processes that others of the session start meanwhile


def signal_session(session: int, number: int) -> None:
    """Signals each process of a session once. session: the pid of its first process, which nobody has collected yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, number)
    signalled: set[int] = set()
    for _ in range(_LOOKS):
        found = _in_other_groups(session) - signalled
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        signalled |= found


def _in_other_groups(session: int) -> set[int]:
    """Pids in the session that a signal to its first group does not reach."""
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                group, own = file.read().rpartition(")")[2].split()[2:4]
        except (OSError, ValueError):  # it has ended
            continue
        if int(own) == session != int(group):
            found.add(int(name))
    return found


def guard(lines: Iterable[str]) -> None:
    """Reads "+id" and "-id", one a line, until they end with the launcher; then kills the sessions that are left."""
    sessions: set[int] = set()
    for line in lines:
        (sessions.add if line[0] == "+" else sessions.discard)(int(line[1:]))
    for session in sessions:
        signal_session(session, signal.SIGKILL)


if __name__ == "__main__":
    guard(sys.stdin)
