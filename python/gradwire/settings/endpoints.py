"""Where processes of a job meet, as text: tcp://host:port."""

from __future__ import annotations

import urllib.parse


def parse(text: str) -> str:
    """Checks where somebody listens: tcp://host:port, tcp://[ipv6]:port or ipc:///path.

    Raises: ValueError: it is neither.
    """
    expected = "expected tcp://host:port, tcp://[ipv6]:port or ipc:///path"
    try:
        parts = urllib.parse.urlsplit(text)
        usable = (parts.scheme == "tcp" and parts.hostname and parts.port is not None and not parts.path) or (
            parts.scheme == "ipc" and parts.path
        )
    except ValueError as error:  # a port above 65535, an unclosed bracket
        raise ValueError(f"{text!r} is not valid ({error}): {expected}") from None
    if not usable:
        raise ValueError(f"{text!r} is not valid: {expected}")
    return text


def written(host: str, port: int | str) -> str:
    """Writes tcp://host:port, with brackets where host is an IPv6 address."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def host_of(text: str) -> str:
    """Returns the host of tcp://host:port, without brackets."""
    return text.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def port_of(text: str) -> int:
    """Returns the port of tcp://host:port."""
    return int(text.rpartition(":")[2])


def next_port(text: str) -> str:
    """Returns tcp://host:port with the port after it."""
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    return f"tcp://{host}:{int(port) + 1}"
