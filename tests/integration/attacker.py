"""An outsider who attacks ports: python attacker.py ATTACK HOST:PORT... [--count N] [--seconds S] [--rate R] [...]

Plain sockets and the standard library: nothing of gradwire, and no ZeroMQ. What it needs of ZMTP 3 (RFC 23) and of
CurveZMQ (RFC 26) it writes itself. It ends after --count attempts, --seconds, or SIGINT, and prints one JSON object:
what it did, at what rate, and all that it ever heard.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import random
import resource
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

AT_ONCE = 20  # connections, so that none waits for another's answer
PATIENCE = 0.2  # seconds for an answer
LONG_PATIENCE = 5.0  # for an end that must come
Address = tuple[str, int]


def greeting(mechanism: bytes) -> bytes:
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def command(name: bytes, body: bytes) -> bytes:
    whole = bytes([len(name)]) + name + body
    return (
        b"\x06" + struct.pack(">Q", len(whole)) + whole
        if len(whole) > 255
        else bytes([4, len(whole)]) + whole
    )


def frame(body: bytes, more: bool) -> bytes:
    return bytes([2 | more]) + struct.pack(">Q", len(body)) + body


NULL_READY = command(b"READY", b"\x0bSocket-Type\0\0\0\x06DEALER")
JOIN = b"role=worker\nrank=any\nworkers=2\nservers=2\nversion=1\nhost=evil\npid=1\n"


def hello_with_a_wrong_key(dice: random.Random) -> bytes:
    """HELLO as CurveZMQ has it: version, padding, a short-term public key, a nonce, and a box of 64 zeros. Sealed for
    another server's key, the box is to this one what random bytes are."""
    return command(
        b"HELLO", b"\x01\x00" + bytes(72) + dice.randbytes(32) + dice.randbytes(8) + dice.randbytes(80)
    )


@dataclass
class Attacker:
    ports: list[Address]
    dice: random.Random
    rate: float | None = None  # connections a second at most
    attempts: int = 0
    frames: int = 0
    held: int = 0
    sent: int = 0
    heard: set[bytes] = field(default_factory=set)
    refused: int = 0
    next_turn: float = 0.0

    def connect(self) -> socket.socket | None:
        if self.rate is not None:
            self.next_turn = max(self.next_turn, time.monotonic()) + 1 / self.rate
            time.sleep(max(0.0, self.next_turn - time.monotonic()))
        try:
            return socket.create_connection(self.dice.choice(self.ports), timeout=2)
        except OSError:
            self.refused += 1
            return None

    def throw(self, data: bytes) -> None:
        """Sends data over a connection of its own and keeps what comes back, to the end or for so long."""
        self.attempts += 1
        connection = self.connect()
        if connection is None:
            return
        with connection, contextlib.suppress(OSError):
            connection.sendall(data)
            self.sent += len(data)
            self.listen(connection, PATIENCE)

    def listen(self, connection: socket.socket, seconds: float) -> bool:
        """Keeps what comes back for so long. Returns whether the other side has ended the connection."""
        answer, ended = b"", False
        end = time.monotonic() + seconds
        try:
            while not ended and (left := end - time.monotonic()) > 0:
                connection.settimeout(left)
                some = connection.recv(65536)
                answer += some
                ended = not some
        except OSError as error:
            ended = not isinstance(error, TimeoutError)
        if answer:
            self.heard.add(answer)
        return ended

    def no_key(self) -> None:
        """Speaks without encryption, and asks to join."""
        self.throw(greeting(b"NULL") + NULL_READY + frame(bytes(112), True) + frame(JOIN, False))

    def wrong_key(self) -> None:
        self.throw(greeting(b"CURVE") + hello_with_a_wrong_key(self.dice))

    def random_frames(self) -> None:
        """A greeting and one frame of noise a connection: a listener reads no second one of who is no member. Counted
        are those that it has read, which ends the connection."""
        under_way = []
        for _ in range(AT_ONCE):
            self.attempts += 1
            connection = self.connect()
            if connection is not None:
                data = greeting(b"CURVE") + self.noise()
                with contextlib.suppress(OSError):
                    connection.sendall(data)
                self.sent += len(data)
                under_way.append(connection)
        for connection in under_way:
            with connection:
                self.frames += self.listen(connection, LONG_PATIENCE)

    def noise(self) -> bytes:
        """A frame of any length up to 4 KB, perhaps a command; or one that says that it is huge."""
        body = self.dice.randbytes(self.dice.choice([0, 1, 32, 112, 200, self.dice.randrange(4096)]))
        is_huge = self.dice.random() < 0.02
        size = self.dice.choice([1 << 32, 1 << 40, (1 << 64) - 1]) if is_huge else len(body)
        return bytes([self.dice.choice([2, 3, 6])]) + struct.pack(">Q", size) + body

    def idle(self, count: int, end: float) -> None:
        """Holds many connections, some after a greeting, some in the middle of one, and opens again what is closed."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        held: list[socket.socket] = []
        while True:
            held = [connection for connection in held if self._is_open(connection)]
            while len(held) < count and (connection := self._idle_one()) is not None:
                held.append(connection)
            self.held = max(self.held, len(held))
            if time.monotonic() >= end:
                break
            time.sleep(0.5)
        for connection in held:
            connection.close()

    def _idle_one(self) -> socket.socket | None:
        self.attempts += 1
        connection = self.connect()
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.sendall([b"", greeting(b"CURVE"), greeting(b"CURVE")[:11]][self.attempts % 3])
            connection.setblocking(False)
        return connection

    def _is_open(self, connection: socket.socket) -> bool:
        try:
            answer = connection.recv(65536)
        except BlockingIOError:
            return True
        except OSError:
            answer = b""
        if answer:
            self.heard.add(answer)
        else:
            connection.close()
        return answer != b""

    def replay(self, recording: bytes) -> None:
        """Says again what a member has said, whole and cut short."""
        self.throw(
            recording if self.attempts % 2 == 0 else recording[: self.dice.randrange(64, len(recording))]
        )


def assault(attacker: Attacker, options: argparse.Namespace, end: float) -> None:
    if options.attack == "idle":
        attacker.idle(options.count, end)
        return
    attack: Callable[[], None] = getattr(attacker, options.attack)
    if options.attack == "replay":
        attack = functools.partial(attacker.replay, options.recording.read_bytes())
    goal = "frames" if options.attack == "random_frames" else "attempts"
    while getattr(attacker, goal) < options.count and time.monotonic() < end:
        attack()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attack", choices=["no_key", "wrong_key", "random_frames", "idle", "replay"])
    parser.add_argument("ports", nargs="+", metavar="HOST:PORT")
    parser.add_argument(
        "--count", type=int, default=20, help="frames read, connections, or idle connections at once"
    )
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="at most; of idle connections at least, too"
    )
    parser.add_argument("--rate", type=float, help="connections a second; unset: as fast as one process can")
    parser.add_argument("--recording", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    ports = [(host, int(port)) for host, _, port in (text.rpartition(":") for text in options.ports)]
    attacker = Attacker(ports, random.Random(options.seed), options.rate)
    began = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        assault(attacker, options, began + options.seconds)
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    record = {
        "attack": options.attack,
        "connections": attacker.attempts,
        "not_accepted": attacker.refused,
        "frames": attacker.frames,
        "held": attacker.held,
        "bytes_sent": attacker.sent,
        "seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "connections_per_second": attacker.attempts / seconds,
        "frames_per_second": attacker.frames / seconds,
        "heard": sorted(answer.hex() for answer in attacker.heard),
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
