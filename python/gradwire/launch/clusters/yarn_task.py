"""What YARN runs in a container for each process of a job: starts it, and sends what it writes to whoever has submitted
it, at whose end, however that comes about, it ends.

YARN shows what a container writes when all is over, and its exit code to nobody. So a container holds one connection to
the submitting machine. Lines there: "TOKEN RANK" first; then "1 TEXT" and "2 TEXT" of stdout and stderr; "x CODE" last.

Runs by itself on a machine that may not have gradwire (bundle.py): only the standard library and supervised_process.py.
Its order comes as a global.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from typing import Any, BinaryIO

from gradwire.launch.remote.supervised_process import GRACE_SECONDS, SupervisedProcess

CONNECT_SECONDS = 30


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


def end_with_the_connection(connection: Connection, kept: SupervisedProcess) -> None:
    connection.wait_for_its_end()
    kept.end()


def hand_on(connection: Connection, mark: bytes, stream: BinaryIO) -> None:
    for line in stream:
        connection.send(mark + line)


def run(order: dict[str, Any], rank: str) -> int:
    """order: "address", "token", "environment", "ranks" (names of variables that hold the rank), "command"."""
    connection = Connection(order["address"], order["token"], rank)
    environment = {**os.environ, **order["environment"], **dict.fromkeys(order["ranks"], rank)}
    try:
        kept = SupervisedProcess(
            order["command"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        connection.send(f"2 gradwire: {os.uname().nodename}: {error}".encode())
        connection.send(b"x 127")
        return 127
    threading.Thread(target=end_with_the_connection, args=(connection, kept), daemon=True).start()
    out, err = kept.process.stdout, kept.process.stderr
    assert out is not None
    assert err is not None
    streams = ((b"1 ", out), (b"2 ", err))
    readers = [
        threading.Thread(target=hand_on, args=(connection, *stream), daemon=True) for stream in streams
    ]
    for reader in readers:
        reader.start()
    code = kept.wait()
    for reader in readers:
        reader.join(GRACE_SECONDS)
    connection.send(f"x {code}".encode())
    return code


if __name__ == "__main__":
    sys.exit(run(ORDER, sys.argv[1]))  # type: ignore[name-defined]  # noqa: F821
