"""A child process that dies with its supervisor, together with everything it started.

It runs alone on a machine that may not have gradwire (bundle.py): it needs the standard library and process_session.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from gradwire.launch.process_session import dying_with_owner, fork_survivor, guard, signal_session

GRACE_SECONDS = 1.5  # between SIGTERM and SIGKILL; less than the launcher's own


class SupervisedProcess:
    """A process and its descendants, which end with it.

    Make it on a thread that lives as long as its owner, before there are other threads. end() may be called from any
    thread.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        """options: of subprocess.Popen.

        Raises: OSError: the program is not there or cannot be run.
        """
        self._guard = fork_survivor(_guard)  # learns from here what to end then
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=dying_with_owner(),
            **options,
        )
        self._tell_guard("+")

    def wait(self) -> int:
        """Waits for its end, and ends its descendants. Returns its exit code, as a shell reports it."""
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        signal_session(self.process.pid, signal.SIGKILL)
        self._tell_guard("-")
        code = self.process.wait()
        return code if code >= 0 else 128 - code

    def end(self) -> None:
        """Ends the process and its descendants."""
        self._signal(signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        self._signal(signal.SIGKILL)

    def hand_on(self, number: int) -> None:
        """Sends a signal to the program only, not to its descendants."""
        if self.process.returncode is None:  # else its id may be another's
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)
        if number == signal.SIGTERM:  # a stopped process must be continued to hear it
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.process.returncode is None:  # else the session's id may be another's
            signal_session(self.process.pid, number)

    def _tell_guard(self, sign: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody ended the guard
            os.write(self._guard, f"{sign}{self.process.pid}\n".encode())


def _guard(reading: int) -> None:
    with open(reading, encoding="ascii") as sessions:
        guard(sessions)
