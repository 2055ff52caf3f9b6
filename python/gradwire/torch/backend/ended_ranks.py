"""Names the ranks whose end is the cause of an error of Gloo's, such as "Connection closed by peer": that error has an
address of a connection at most.

Each process keeps one listening socket that it never answers. The kernel accepts connections to it for as long as the
process lives, so another rank can ask whether it does, with no thread here. A rank that ends with an error leaves its
text in the group's store. What is found is added to an uncaught error; nothing is done before.

Threading: called on the thread in which an error ends the script.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from gradwire.stores import uncaught_error

_ADDRESS, _END = "gradwire/address/{}", "gradwire/end/{}"
_OF_GLOO = "gloo/"  # the path of Gloo's sources begins each of its errors
_CONNECT_SECONDS = 2.0
_MOST_ASKED = 64  # ranks that are asked one after the other
_BACKLOG = 1024


@dataclass(frozen=True)
class _Member:
    """This process in one group."""

    store: Any
    rank: int
    size: int


_members: list[_Member] = []
_listener: socket.socket | None = None


def watch(store: Any, rank: int, size: int) -> None:
    """Has an uncaught error of this process name the ranks of a group that have ended.

    Args:
        store: of the group, torch's.
        rank, size: of this process in the group.
    """
    if size < 2:
        return
    if not _members:
        _chain_excepthook()
    _members.append(_Member(store, rank, size))
    address = [socket.gethostname(), _own_host(store), _listening_port()]
    store.set(_ADDRESS.format(rank), json.dumps(address))


def causes() -> str:
    """Names the ranks of this process's groups that have ended before it, each with its error where it left one; empty
    where all live, or none can be asked.
    """
    found: dict[str, None] = {}
    for member in reversed(_members):
        with contextlib.suppress(Exception):  # the store has gone with a rank that served it
            found |= dict.fromkeys(_ended_in(member))
    return "; ".join(found)


def _ended_in(member: _Member) -> list[str]:
    ends = {}
    silent = []
    others = [rank for rank in range(member.size) if rank != member.rank]
    for rank in others[:_MOST_ASKED]:
        if (end := _read(member.store, _END.format(rank))) is not None:
            ends[rank] = end
        elif not _lives(member.store, rank):
            silent.append(rank)
    where = "" if len(_members) == 1 else f" of a process group of {member.size} ranks"
    own = {rank: end for rank, end in ends.items() if _OF_GLOO not in end}
    return [f"rank {rank}{where} has ended with {end}" for rank, end in own.items()] + [
        f"rank {rank}{where} has ended without an error of Python's, as a killed process does, or cannot be reached"
        for rank in silent
    ]


def _lives(store: Any, rank: int) -> bool:
    """Whether a rank's listening socket is there. True where nothing is known of it."""
    address = _read(store, _ADDRESS.format(rank))
    if address is None:
        return True
    machine, host, port = json.loads(address)
    if host.startswith("127.") and machine != socket.gethostname():
        return True  # its machine has no other address for its own name
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _read(store: Any, key: str) -> str | None:
    return store.get(key).decode() if store.check([key]) else None


def _chain_excepthook() -> None:
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        text = uncaught_error.describe(error)
        for member in _members:  # the others fail when this process has ended, and read it then
            with contextlib.suppress(Exception):  # the store has gone with a rank that served it
                member.store.set(_END.format(member.rank), text)
        if _OF_GLOO in text and (found := causes()):
            print(f"gradwire: cause of the error above: {found}", file=sys.stderr, flush=True)

    sys.excepthook = report


def _listening_port() -> int:
    global _listener
    if _listener is None:
        _listener = socket.create_server(("", 0), backlog=_BACKLOG)
        os.register_at_fork(after_in_child=_close_listener)  # else a child would seem to be this process
    port: int = _listener.getsockname()[1]
    return port


def _close_listener() -> None:
    if _listener is not None:
        _listener.close()


def _own_host(store: Any) -> str:
    """The address by which the group's other ranks reach this machine: that of the way to torch's store."""
    host = getattr(_below_prefixes(store), "host", None) or socket.gethostname()
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def _below_prefixes(store: Any) -> Any:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store
