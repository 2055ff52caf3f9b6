"""A worker of `allreduce` that says hello, hosts a server as its job has it, and dies when it is called: before anybody
can reach it. Plain sockets and transport/PROTOCOL.md: nothing of gradwire.

    GRADWIRE_SCHEDULER, GRADWIRE_RANK, GRADWIRE_NUM_WORKERS: as `gradwire run` sets them
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import zlib
from urllib.parse import urlsplit

from attacker import NULL_READY, frame, greeting

HELLO, ROSTER, UNKNOWN_RANK = 1, 2, 0xFFFFFF
ROLES = {"server": 2, "worker": 3}


def hello(role: str, **own: object) -> bytes:
    workers = os.environ["GRADWIRE_NUM_WORKERS"]
    fields = {"role": role, "rank": "any", "workers": workers, "servers": workers, "pair": "d", "version": 1}
    fields |= {"host": "deserter", "pid": os.getpid(), "member": "deserter", "endpoint": ""} | own
    payload = "".join(f"{name}={value}\n" for name, value in fields.items()).encode()
    sender = ROLES[role] << 24 | UNKNOWN_RANK
    crc = 0
    for _ in range(2):  # with its own field 0, and then filled in
        header = struct.pack(
            "<IBBBBBBHIQIiQQQQ4IQII16x",
            *(0x31575247, 1, HELLO, 0, 0, 0, 0, 0, 0, 0, sender, 0, 0, 0, 0, 0, 0, 0, 0, 0),
            *(len(payload), zlib.crc32(payload), crc),
        )
        crc = zlib.crc32(header)
    return frame(header, True) + frame(payload, False)


def say(text: bytes) -> socket.socket:
    scheduler = urlsplit(os.environ["GRADWIRE_SCHEDULER"])
    connection = socket.create_connection((scheduler.hostname, scheduler.port), timeout=300)
    connection.sendall(greeting(b"NULL") + NULL_READY)
    await_bytes(connection, b"READY")
    connection.sendall(text)
    return connection


def await_bytes(connection: socket.socket, wanted: bytes) -> None:
    heard = b""
    while wanted not in heard:
        some = connection.recv(65536)
        assert some, heard
        heard += some


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    with (
        say(hello("server", endpoint=endpoint)),
        say(hello("worker", rank=os.environ["GRADWIRE_RANK"])) as worker,
    ):
        await_bytes(worker, struct.pack("<IBB", 0x31575247, 1, ROSTER))
        os.kill(os.getpid(), signal.SIGKILL)


main()
