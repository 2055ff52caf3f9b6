"""Reads `-H`: a file with one host a line, or "host:slots,host:slots"."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

_SLOTS = re.compile(r"\s+slots\s*=")
_MAX_SLOTS = re.compile(r"\s+max[-_]slots\s*=\s*\d+")
"""Of Open MPI's files: how far a host may be oversubscribed. Workers never take more than the slots."""


@dataclass(frozen=True)
class HostSlots:
    """A host's name or address, and how many workers it takes."""

    name: str
    slots: int


def read_hosts(text: str) -> list[HostSlots]:
    """Reads -H's value.

    Raises: ValueError: no host, a name that is none, slots that are no number above 0, or a file that cannot be read.
    """
    entries = _read_lines(text) if os.path.isfile(text) else text.split(",")
    words = [entry.partition("#")[0].strip() for entry in entries]
    hosts = [_read_host(word) for word in words if word]
    if not hosts:
        raise ValueError(
            f"run: -H {text} names no host: give a file with one host a line, or host:slots,host:slots"
        )
    return hosts


def _read_lines(file: str) -> list[str]:
    try:
        # utf-8-sig: editors of Windows begin a file with a byte-order mark.
        return Path(file).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"run: -H {file} cannot be read ({error}): expected a text file in UTF-8 with one host a line"
        ) from None


def _read_host(word: str) -> HostSlots:
    name, slots = _parts(_MAX_SLOTS.sub("", word))
    if not slots.isdecimal() or int(slots) == 0:
        raise ValueError(
            f"run: -H {word}: {slots!r} is not a number of slots: expected host:slots, such as node1:2"
        )
    if not name or any(letter.isspace() for letter in name):
        raise ValueError(
            f"run: -H {word}: {name!r} is not a host's name: expected host:slots, or in a file also host slots=N, such "
            "as node1:2"
        )
    return HostSlots(name, int(slots))


def _parts(word: str) -> tuple[str, str]:
    """Returns a host's name and its slots, which are 1 where they are not given."""
    name, slots = word, "1"
    if found := _SLOTS.search(word):
        name, slots = word[: found.start()], word[found.end() :]
    elif _has_slots(word):
        name, _, slots = word.rpartition(":")
    return name.strip("[] "), slots.strip()


def _has_slots(word: str) -> bool:
    """A bare IPv6 address has colons and no slots."""
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return ":" in word.rpartition("]")[2]
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
