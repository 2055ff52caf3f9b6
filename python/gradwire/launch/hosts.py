"""Reads `-H`: a file with one host a line, or "host:slots,host:slots"."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class HostSlots:
    """A host's name or address, and how many workers it takes."""

    name: str
    slots: int


def read_hosts(text: str) -> list[HostSlots]:
    """Reads -H's value.

    Raises: ValueError: no host, or slots that are no number above 0.
    """
    # utf-8-sig: editors of Windows begin a file with a byte-order mark.
    entries = (
        Path(text).read_text(encoding="utf-8-sig").splitlines() if os.path.isfile(text) else text.split(",")
    )
    words = [entry.partition("#")[0].strip() for entry in entries]
    hosts = [_read_host(word) for word in words if word]
    if not hosts:
        raise ValueError(
            f"run: -H {text} names no host: give a file with one host a line, or host:slots,host:slots"
        )
    return hosts


def _read_host(word: str) -> HostSlots:
    name, _, slots = word.replace(" slots=", ":").rpartition(":") if _has_slots(word) else (word, "", "1")
    if not slots.strip().isdecimal() or int(slots) == 0:
        raise ValueError(
            f"run: -H {word}: {slots!r} is not a number of slots: expected host:slots, such as node1:2"
        )
    return HostSlots(name.strip("[] "), int(slots))


def _has_slots(word: str) -> bool:
    """A bare IPv6 address has colons and no slots."""
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return ":" in word.rpartition("]")[2] or " slots=" in word
    return False


def address_of(name: str) -> str:
    """Returns the address of a host's name, as this machine finds it.

    Raises: OSError: it has none here.
    """
    return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])


def is_this_machine(name: str) -> bool:
    """Tells whether name is this machine by loopback or by its own host name."""
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
