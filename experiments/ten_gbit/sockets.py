"""What the kernel alone takes for an all-reduce's bytes: every rank sends every other its share, and sums nothing.

python sockets.py RANK SHARE_BYTES ROUNDS ADDRESS...

Prints a line of JSON for each round: seconds and CPU seconds of this rank. One connection between each two ranks
carries SHARE_BYTES both ways, by nonblocking sockets and one thread.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
import time
from dataclasses import dataclass

PORT = 7777
_MOST_AT_ONCE = 1 << 20
_PAUSE_SECONDS = 0.3
_DEADLINE_SECONDS = 30.0


@dataclass
class Link:
    socket: socket.socket
    sent: int = 0
    received: int = 0


def connect(rank: int, addresses: list[str]) -> list[Link]:
    """Returns a connection with each other rank: the higher one of two dials."""
    listener = socket.create_server((addresses[rank], PORT))
    listener.settimeout(_DEADLINE_SECONDS)
    links = [Link(dial(address)) for address in addresses[:rank]]
    links += [Link(listener.accept()[0]) for _ in addresses[rank + 1 :]]
    for link in links:
        link.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.socket.setblocking(False)
    return links


def dial(address: str) -> socket.socket:
    """Waits for the listener, which may be late."""
    last = time.monotonic() + _DEADLINE_SECONDS
    while True:
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            if time.monotonic() > last:
                raise
            time.sleep(0.05)


def exchange(links: list[Link], out: memoryview, into: memoryview) -> None:
    """Sends `out` to each other rank and receives as much."""
    poller = select.epoll()
    by_fd = {link.socket.fileno(): link for link in links}
    for link in links:
        link.sent = link.received = 0
        poller.register(link.socket, select.EPOLLIN | select.EPOLLOUT)
    busy = len(links)
    while busy:
        for fd, events in poller.poll():
            link = by_fd[fd]
            if events & select.EPOLLOUT:
                with contextlib.suppress(BlockingIOError):
                    while link.sent < len(out):
                        link.sent += link.socket.send(out[link.sent : link.sent + _MOST_AT_ONCE])
            if events & select.EPOLLIN:
                link.received += link.socket.recv_into(into[link.received :])
            if link.sent < len(out):
                continue
            if link.received < len(into):
                poller.modify(fd, select.EPOLLIN)
            else:
                poller.unregister(fd)
                busy -= 1
    poller.close()


def main() -> None:
    rank, share, rounds = (int(word) for word in sys.argv[1:4])
    links = connect(rank, sys.argv[4:])
    out, into = memoryview(bytearray(share)), memoryview(bytearray(share))
    for _ in range(rounds):
        time.sleep(_PAUSE_SECONDS)
        cpu, begin = time.process_time(), time.perf_counter()
        exchange(links, out, into)
        print(
            json.dumps({"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - cpu}),
            flush=True,
        )


if __name__ == "__main__":
    main()
