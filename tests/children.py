"""The processes that a run of the tests has started. Each leads a session of its own, so that its end, or the end of
the run, ends what it has started, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

GRACE_SECONDS = 10.0
"""pytest ends its processes, and those end their jobs."""

_lock = threading.RLock()  # a signal may come while its thread has it
_running: set[subprocess.Popen[bytes]] = set()
_is_ending = False


class RunEndedError(Exception):
    """The run ends: nothing else is started."""


@contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a command, and waits for it at the end of the block. options: as for subprocess.Popen.

    Raises:
        FileNotFoundError: there is no such program.
        RunEndedError: end_run() was called.
    """
    with _lock:
        if _is_ending:
            raise RunEndedError
        process = subprocess.Popen(command, start_new_session=True, **options)
        _running.add(process)
    try:
        with process:
            yield process
    finally:
        with _lock:
            _running.discard(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a child and what it has started: what has its output open would keep a reader waiting."""
    _send(process, signal.SIGKILL)


def end_run_on_signals() -> None:
    """From now on Ctrl-C, or SIGTERM, ends the run and all its processes; a second one does not wait for them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_run)


def end_run(number: int, _frame: FrameType | None = None) -> NoReturn:
    """Ends all children as Ctrl-C does, those that are still there after a while by force, and then this process."""
    global _is_ending
    with _lock:
        is_second, _is_ending = _is_ending, True
        there = list(_running)
    for process in there:
        _send(process, signal.SIGINT)
    deadline = time.monotonic() + (0 if is_second else GRACE_SECONDS)
    while time.monotonic() < deadline and any(_is_there(process) for process in there):
        time.sleep(0.05)
    for process in there:
        kill(process)
    os.write(2, f"tests: ended by {signal.Signals(number).name}\n".encode())  # print() may be at work below
    os._exit(128 + number)  # nothing that waits for a child goes on


def _send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _is_there(process: subprocess.Popen[bytes]) -> bool:
    """Whether anything is left of it and its group. Only for end_run(): nobody else learns its exit status then."""
    with suppress(ChildProcessError):
        os.waitpid(
            process.pid, os.WNOHANG
        )  # the thread that would wait for it may be the one that ends the run
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
