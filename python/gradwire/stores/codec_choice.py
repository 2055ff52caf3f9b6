"""Which codec a front end uses: what its user wrote, and what the environment says in its place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from gradwire.compress import Compression
from gradwire.settings import definitions as settings
from gradwire.stores import codec_override

__all__ = ["Wanted", "chosen", "naming_the_variable", "parse_codec"]

Wanted = str | Mapping[str, Any]

# What optimizers are given are means, over the batch or over ranks, for which MXNet's threshold of 0.5 is too large.
_DEFAULTS = {"2bit": {"threshold": "auto"}}


def parse_codec(front_end: str, wanted: Wanted) -> Compression:
    """Reads what a user wrote, with the defaults of front ends whose optimizers step on workers.

    Args:
        front_end: who asks, for errors, as "gradwire.torch".

    Raises:
        ValueError: an unknown codec, parameter or reply; or weights, which no server sends where optimizers step on
            workers.
        TypeError: neither text nor a mapping.
    """
    if not isinstance(wanted, str | Mapping):
        raise TypeError(
            f"{front_end}: the codec is {wanted!r}, expected text such as '2bit:threshold=auto' or a mapping such "
            "as {'type': '2bit'}"
        )
    reply = settings.read().reply
    try:
        parsed = Compression.parse(wanted, defaults=_DEFAULTS, reply=reply)
    except ValueError as error:
        raise ValueError(f"{front_end}: {error}") from None
    parsed.require_whole_weights(f"{front_end}: the optimizer steps on the workers")
    return parsed


def chosen(wanted: Any) -> Any:
    """Returns what counts: GRADWIRE_COMPRESSION, if it is set, or else what the script wants."""
    return codec_override.taken() or wanted


@contextlib.contextmanager
def naming_the_variable(override: str | None) -> Iterator[None]:
    """Has a ValueError that is raised inside say that GRADWIRE_COMPRESSION is read, and not what the script gives.

    Args:
        override: the variable's value; None: it is not set.
    """
    try:
        yield
    except ValueError as error:
        if override is None:
            raise
        raise ValueError(
            f"GRADWIRE_COMPRESSION={override} is set, and overrides the script: {error}"
        ) from None
