"""Processes that end with their owner, and signals for every process of a session. Run as a program, it is the guard
of a job (child.Guard).

Groups would not do: mpirun gives each of its ranks a group of its own, in mpirun's session.

As a program it runs by itself: only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable

_LOOKS = 10  # for processes that others of the session start meanwhile
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl  # found before any fork: the child must not import or allocate much


def dying_with_owner() -> Callable[[], None]:
    """Returns a preexec_fn of subprocess.Popen, by which a child is killed when the thread that starts it ends."""
    owner = os.getpid()

    def die_with_owner() -> None:
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != owner:  # it died before prctl took effect
            os._exit(1)

    return die_with_owner


def fork_survivor(act: Callable[[int], object]) -> int:
    """Forks a process that outlives this one, has no part in its session and its streams, and ends after act.

    Args:
        act: gets the reading end of a pipe, which closes when this process ends. Must not need threads of this process.

    Returns: the writing end.
    """
    reading, writing = os.pipe()
    if os.fork() != 0:
        os.close(reading)
        return writing
    try:
        os.setsid()  # what ends this process's group is not for it
        os.close(writing)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):  # whoever reads them waits until nobody holds them
            os.dup2(nothing, stream)
        act(reading)
    finally:
        os._exit(0)


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
