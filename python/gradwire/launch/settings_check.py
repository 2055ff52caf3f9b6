"""Finds errors in settings that a job would find later: unknown names, and text that cannot be parsed.

For `gradwire doctor`; it needs the compiled part.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from gradwire import _core
from gradwire.compress import Compression
from gradwire.launch import hosts
from gradwire.settings import endpoints

_ALL_INTERFACES = "*"
_ANY_PEER = ""  # no job is there yet: nobody knows of which family its addresses are
_ANY_REPLY = "exact"


def faults(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns what is wrong, by the names of settings. values: settings by name; those that
    are not there are not looked at."""
    checks: dict[str, Callable[[Any], Any]] = {
        "interface": lambda name: _core.address_of_interface(name, _ANY_PEER),
        "bind_host": _require_own_address,
        "scheduler": _require_address,
        "master": _require_address,
        "compression": lambda text: _require_codec(text, values["reply"]),
        "reply": lambda text: _require_reply(text, values["compression"]),
        "faults": lambda text: _core.check_faults(text, None, 0),
    }
    found = {}
    for name, check in checks.items():
        if values.get(name) is not None:
            try:
                check(values[name])
            except (ValueError, TypeError, OSError) as error:
                found[name] = str(error)
    return found


def _require_own_address(host: str) -> None:
    if host == _ALL_INTERFACES:
        return
    address = _address_of(host)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise ValueError(
                f"{host!r} is no address of this machine ({error.strerror}): expected one of its own, or *"
            ) from None


def _require_address(endpoint: str) -> None:
    if endpoint.startswith("tcp://"):
        _address_of(endpoints.host_of(endpoint))


def _address_of(host: str) -> str:
    try:
        return hosts.address_of(host)
    except OSError as error:
        raise ValueError(
            f"{host!r} has no address here ({error.strerror}): give it one in /etc/hosts or DNS, or correct it"
        ) from None


def _require_codec(text: str, reply: str) -> None:
    from gradwire.controller.budget import requested

    if requested(text) is None:
        Compression.parse(text, reply=reply)


def _require_reply(reply: str, compression: str | None) -> None:
    """Checks the reply. Without a codec in the environment, the script's applies, whose replies are not known yet."""
    if compression is not None or reply in (_ANY_REPLY, "fp32"):
        return
    names = [codec["name"] for codec in _core.codecs()]
    if reply not in names:
        raise ValueError(f"{reply!r} is no reply: expected exact, fp32 or a codec's name: {', '.join(names)}")
