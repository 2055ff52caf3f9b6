"""The store that the torch front end talks through, and the compression that is set on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradwire import kv, settings
from gradwire.compress import Compression

Wanted = str | Mapping[str, Any]

# torch's gradients are means over the batch, for which MXNet's threshold of 0.5 is far too large.
_DEFAULTS = {"2bit": {"threshold": "auto"}}

_default: kv.KVStore | None = None


def default_store() -> kv.KVStore:
    """Returns the store used where none is given: the one by which this process has joined its job. Where there is
    none yet, one is made, once: inside a job `dist_sync` if it has servers, else `allreduce`; outside `local`.
    """
    global _default
    if (store := kv.joined()) is not None:
        return store
    if _default is None:
        here = settings.read()
        in_a_job = "dist_sync" if here.num_servers else "allreduce"
        _default = kv.create("local" if here.scheduler is None and here.master is None else in_a_job)
    return _default


def parse_compression(wanted: Wanted) -> Compression:
    """Reads what a user wrote, with this front end's defaults.

    Raises:
        ValueError: an unknown codec, parameter or reply.
    """
    return Compression.parse(wanted, defaults=_DEFAULTS, reply=settings.read().reply)


def chosen(wanted: Wanted) -> Wanted:
    """Returns what counts: GRADWIRE_COMPRESSION, if it is set, or else what the script wants."""
    return settings.read().compression or wanted


def set_compression(store: kv.KVStore, wanted: Wanted | None) -> None:
    """Sets a store's compression, with this front end's defaults. Collective.

    Args:
        wanted: as for DistributedOptimizer; GRADWIRE_COMPRESSION wins over it. None of both: nothing is set.

    Raises:
        ValueError: an unknown codec, parameter or reply.
    """
    given = settings.read().compression or wanted
    if given is not None:
        # Not set_gradient_compression(): it reads GRADWIRE_COMPRESSION itself, with MXNet's defaults.
        store.use_compression(parse_compression(given))
