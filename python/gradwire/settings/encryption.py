"""The key that makes a process a member of an encrypted job: what it looks like, and which jobs have one.

A key is a secret. It travels in the environment (GRADWIRE_JOB_KEY), never on a command line, and neither its repr()
nor any error shows it. What it protects from whom: python/docs/explanation/security.md.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field

VARIABLE = "GRADWIRE_JOB_KEY"
_TEXT = re.compile(r"[0-9a-fA-F]{128}")


@dataclass(frozen=True)
class JobKey:
    """text: 128 hexadecimal digits, two secret keys of CURVE: that of all who listen, and that of all who connect."""

    text: str = field(repr=False)


def parse_job_key(text: str) -> JobKey:
    """Raises: ValueError: it is none. Says how long it is and not what: it may be all but right."""
    if not _TEXT.fullmatch(text):
        raise ValueError(
            f"{len(text)} characters that are not a job key: expected 128 hexadecimal digits, as `gradwire key` prints"
        )
    return JobKey(text)


def new_key() -> JobKey:
    """Makes one, from the system's random numbers.

    Raises: gradwire.TransportError: this libzmq cannot encrypt.
    """
    from gradwire import _core

    return JobKey(_core.make_job_key())


def reaches_beyond(host: str) -> bool:
    """Tells whether who listens on a host's name or address can be reached from other machines. A name that has no
    address here may have one elsewhere: True."""
    if host == "*":  # all interfaces
        return True
    try:
        found = {str(row[4][0]).partition("%")[0] for row in socket.getaddrinfo(host, None)}
    except OSError:
        return True
    return not all(ipaddress.ip_address(address).is_loopback for address in found)


def key_of_new_job(encrypt: str, hosts: Iterable[str]) -> JobKey | None:
    """Returns the key of a job that is about to start; None: it is not encrypted.

    Args:
        encrypt: on, off, or auto: where another machine can reach one of the job's.
        hosts: names or addresses on which its processes listen.

    Raises: gradwire.TransportError: this libzmq cannot encrypt.
    """
    wanted = encrypt == "on" or (encrypt == "auto" and any(map(reaches_beyond, hosts)))
    return new_key() if wanted else None


def key_of_member(encrypt: str, key: JobKey | None) -> JobKey | None:
    """Returns the key with which a process joins its job.

    Raises: ValueError: encryption is on, and there is no key.
    """
    if encrypt == "off":
        return None
    if encrypt == "on" and key is None:
        raise ValueError(
            f"GRADWIRE_ENCRYPT=on, but {VARIABLE} is not set: start the job with `gradwire run --encrypt`, or give all "
            "its processes the same key, which `gradwire key` makes"
        )
    return key


def warn_if_open(encrypt: str, key: JobKey | None, host: str) -> None:
    """Warns if other machines can join and read a job that `gradwire run` did not start."""
    where = "all interfaces" if host == "*" else host
    if encrypt == "auto" and key is None and reaches_beyond(host):
        warnings.warn(
            f"this job listens on {where} and is not encrypted: whoever reaches it can read and change the "
            f"gradients; set {VARIABLE} on all ranks to what `gradwire key` prints, or GRADWIRE_ENCRYPT=off",
            stacklevel=2,
        )
