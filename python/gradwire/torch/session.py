"""The store that gradwire.torch uses, and the compression that applies."""

from __future__ import annotations

from typing import Any

from gradwire import kv
from gradwire.compress import Compression
from gradwire.controller import Budget, requested
from gradwire.settings import definitions as settings
from gradwire.stores import codec_choice, codec_override, connect
from gradwire.stores import default_store as stores
from gradwire.stores.backend import AbstractKVStore
from gradwire.stores.codec_choice import Wanted, chosen, naming_the_variable

__all__ = [
    "Wanted",
    "auto_budget",
    "chosen",
    "default_store",
    "is_open",
    "is_overridden",
    "own_store",
    "parse_chosen",
    "parse_compression",
    "require_company",
    "require_sums",
]


def default_store() -> kv.KVStore:
    """Returns the store that is used if none is given: the store by which this process joined its job.

    If there is none, or it was closed, a store is made: inside a job `dist_sync` if it has servers, else `allreduce`;
    outside a job `local`.

    Raises:
        ValueError: the environment names several workers, but no rendezvous.
    """
    return stores.default_store("gradwire.torch")


def own_store(store: Any) -> kv.KVStore:
    """Returns the given store, or the default store for None.

    Raises:
        TypeError: it is not a store, or is a store that gradwire did not make.
    """
    if store is None:
        return default_store()
    if isinstance(store, AbstractKVStore) and not isinstance(store, kv.KVStore):
        raise TypeError(
            f"gradwire.torch: store is a {type(store).__name__} of another maker, which sums but has none of the "
            f"engine that is needed here; expected one of gradwire's own: {', '.join(connect.names())}"
        )
    if not isinstance(store, kv.KVStore):
        raise TypeError(
            f"gradwire.torch: store is {store!r}, expected what gradwire.kv.create() returns, or None"
        )
    return store


def require_company(store: kv.KVStore) -> None:
    """Raises ValueError where a default store trains alone, though torch's process group has other ranks: the group was
    made after the store."""
    stores.require_company("gradwire.torch", store)


def require_sums(store: kv.KVStore) -> None:
    """Raises ValueError for a store that gives weights where an optimizer here needs the workers' gradients."""
    if store.keeps_weights:
        raise ValueError(
            f"gradwire.torch: set_optimizer() was called on the store {store.type!r}, which gives weights since and no "
            "mean gradient for an optimizer here; leave it out, or push gradients and pull weights with the store's "
            "own calls"
        )
    if connect.applies_at_once(store.type):
        raise ValueError(
            f"gradwire.torch: the servers of the store {store.type!r} apply each gradient to the weights, so that "
            "there is no mean gradient for an optimizer here; use a store that sums, as 'dist_sync', or "
            "set_optimizer() on the store, and push gradients and pull weights with it"
        )


def is_open(store: kv.KVStore) -> bool:
    """False once a store has been closed."""
    return store.is_open


def parse_compression(wanted: Wanted) -> Compression:
    """Reads what a user wrote, with this front end's defaults.

    Raises:
        ValueError: an unknown codec, parameter or reply; or weights, which no server sends where optimizers step on
            workers.
        TypeError: neither text nor a mapping.
    """
    return codec_choice.parse_codec("gradwire.torch", wanted)


def parse_chosen(wanted: Wanted | None) -> Compression | None:
    """Reads what counts; None where neither is given.

    Raises:
        As parse_compression().
    """
    override = codec_override.taken()
    given = override or wanted
    with naming_the_variable(override):
        return None if given is None else parse_compression(given)


def auto_budget(wanted: Wanted | None, budget: str | None) -> Budget | None:
    """Returns the budget where what counts is compression "auto"; None where it is another, or none.

    Args:
        wanted, budget: what the script gives.

    Raises:
        ValueError: a bad budget, or one beside a codec that the script names.
        TypeError: a budget that is no text.
    """
    own = requested(wanted, budget)
    if own is None and budget is not None:
        raise ValueError(
            f"gradwire.torch: budget={budget!r} was given with compression {wanted!r}, where nothing is chosen; give "
            "compression='auto', or leave the budget out"
        )
    if (override := codec_override.taken()) is None:
        return own
    return requested(override, budget)


def is_overridden() -> bool:
    """True where GRADWIRE_COMPRESSION takes the place of all that the script says of codecs."""
    return bool(settings.read().compression)
