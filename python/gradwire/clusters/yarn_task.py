"""What YARN runs in a container for each process of a job: starts it, and sends what it writes to whoever has submitted
it, at whose end, however that comes about, it ends.

YARN shows what a container writes when all is over, and its exit code to nobody. So a container holds one connection to
the submitting machine. Lines there: "TOKEN RANK" first; then "1 TEXT" and "2 TEXT" of stdout and stderr; "x CODE" last.

Runs by itself on a machine that may not have gradwire: only the standard library. run() has its order put behind it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, BinaryIO

CONNECT_SECONDS = 30
GRACE_SECONDS = 1.5  # between SIGTERM and SIGKILL; less than the launcher's own


class Connection:
    """Lines to the submitting machine. Any thread may send."""

    def __init__(self, address: list[Any], token: str, rank: str) -> None:
        self._socket = socket.create_connection((address[0], address[1]), CONNECT_SECONDS)
        self._socket.settimeout(None)
        self._lock = threading.Lock()
        self.send(f"{token} {rank}".encode())

    def send(self, line: bytes) -> None:
        with contextlib.suppress(OSError), self._lock:
            self._socket.sendall(line.rstrip(b"\n") + b"\n")

    def wait_for_its_end(self) -> None:
        with contextlib.suppress(OSError):
            while self._socket.recv(4096):
                pass


def signal_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def end_with_the_connection(connection: Connection, child: subprocess.Popen[bytes]) -> None:
    connection.wait_for_its_end()
    signal_group(child, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    signal_group(child, signal.SIGKILL)


def hand_on(connection: Connection, mark: bytes, stream: BinaryIO) -> None:
    for line in stream:
        connection.send(mark + line)


def run(order: dict[str, Any], rank: str) -> int:
    """order: "address", "token", "environment", "ranks" (names of variables that hold the rank), "command"."""
    connection = Connection(order["address"], order["token"], rank)
    environment = {**os.environ, **order["environment"], **dict.fromkeys(order["ranks"], rank)}
    try:
        child = subprocess.Popen(
            order["command"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        connection.send(f"2 gradwire: {os.uname().nodename}: {error}".encode())
        connection.send(b"x 127")
        return 127
    threading.Thread(target=end_with_the_connection, args=(connection, child), daemon=True).start()
    assert child.stdout is not None
    assert child.stderr is not None
    streams = ((b"1 ", child.stdout), (b"2 ", child.stderr))
    readers = [
        threading.Thread(target=hand_on, args=(connection, *stream), daemon=True) for stream in streams
    ]
    for reader in readers:
        reader.start()
    code = child.wait()
    signal_group(child, signal.SIGKILL)  # what it started and left behind
    for reader in readers:
        reader.join(GRACE_SECONDS)
    code = code if code >= 0 else 128 - code
    connection.send(f"x {code}".encode())
    return code


if __name__ == "__main__":
    sys.exit(run(ORDER, sys.argv[1]))  # type: ignore[name-defined]  # noqa: F821
