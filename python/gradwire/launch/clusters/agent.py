"""What all agents of clusters have in common.

An agent is a local process that stands for all workers, or all servers, of a job in a cluster. It submits them, writes
their lines, ends with the exit code of the first failure, and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from gradwire.launch.child import NotHandedOnError
from gradwire.launch.process_session import fork_survivor

RANK = "GRADWIRE_RANK"  # in which a process that a cluster has started finds its rank
RANK_VARIABLES = (RANK, "DMLC_RANK")


def command(agent: str, order: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    """Returns the command of an agent. agent: its module. order: what main() reads; no secrets, because all users can
    read it.
    """
    return [sys.executable, "-m", agent, json.dumps(order), *words]


def script(environment: Mapping[str, str], names: Collection[str], words: Sequence[str]) -> str:
    """Returns lines for sh that run a command with the variables named, its rank in $rank, and no input."""
    lines = [f"export {name}={shlex.quote(environment[name])}" for name in sorted(names)]
    lines += [f'export {name}="$rank"' for name in RANK_VARIABLES]
    return "\n".join([*lines, f"{shlex.join(words)} </dev/null"]) + "\n"


def deliver(pid: int, number: signal.Signals) -> None:
    """child.Deliver of an agent: SIGTERM asks it to end the tasks; it cannot pass on other signals."""
    if number != signal.SIGTERM:
        raise NotHandedOnError(
            "signals do not reach a cluster's tasks from here; send it with the cluster's own tools"
        )
    os.kill(pid, number)


@contextlib.contextmanager
def cancelled_at_the_end(cancel: Callable[[], None]) -> Iterator[None]:
    """Cancels what the block has submitted: when it ends, on a signal, and when this process is killed.

    For the last case a separate process watches. cancel may be called twice, and has a few seconds.
    """

    def cancel_unless_told(reading: int) -> None:
        if not os.read(reading, 1):  # this process has ended without a message
            cancel()

    word = fork_survivor(cancel_unless_told)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        cancel()
        os.write(word, b"0")


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)


class Failure:
    """The failure that counts, and the time that other tasks have after the first."""

    def __init__(self, notice_seconds: float) -> None:
        self._notice_seconds = notice_seconds
        self.code = 0  # its exit code; 0: none has failed
        self._until = float("inf")

    def hear(self, rank: int, code: int, words: str = "") -> None:
        """Records the end of a rank.

        Clusters report ends in any order. Exit code 1 is that of tasks that were notified of another's failure, so any
        other code takes precedence.
        """
        if code == 0:
            return
        if self.code == 0:
            self._until = time.monotonic() + self._notice_seconds
        if self.code in (0, 1):
            self.code = code
        say(f"rank {rank} ended with exit code {code}{words and f': {words}'}")

    @property
    def is_over(self) -> bool:
        """Returns True if the other tasks have had their time."""
        return time.monotonic() > self._until


def write_line(stream: int, rank: int | None, line: bytes) -> None:
    """Writes a line as `srun --label` does, for LabelledSplitter. rank None: the agent's own message."""
    label = b"" if rank is None else b"%d: " % rank
    os.write(stream, label + line.rstrip(b"\n") + b"\n")


def say(text: str) -> None:
    """Writes a message of the agent to stderr."""
    write_line(2, None, text.encode())
