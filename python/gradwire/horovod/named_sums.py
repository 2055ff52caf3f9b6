"""NamedSums: sums that a codec compresses, each under a key of the store that its name has.

The store keeps, by key, what a codec has not sent yet (error feedback), so a name is always the same tensor. Keys are
declared when their operation is first negotiated, so at the same place on all ranks; after that sums are pushed with
their priority and come back in any order.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from gradwire import _core, kv
from gradwire.horovod.array_library import ArrayLibrary
from gradwire.horovod.request import Request, TensorSpec

# A store's keys outlive init() and shutdown().
_keys_of: weakref.WeakKeyDictionary[kv.KVStore, dict[tuple[str, TensorSpec, str], int]] = (
    weakref.WeakKeyDictionary()
)


class NamedSums:
    """The compressed sums of one store. On the coordinator's thread."""

    def __init__(self, store: kv.KVStore, library: ArrayLibrary) -> None:
        self._store = store
        self._library = library
        self._keys = _keys_of.setdefault(store, {})
        self._given: list[tuple[_core.Ticket, Any]] = []  # by stand-ins, whom nobody waits for

    def send(self, request: Request, runs: Sequence[Any], priority: int, scale: float) -> list[_core.Ticket]:
        """Pushes float32 runs, which hold the sums, times scale, when the tickets are done.

        Raises: gradwire.TransportError, gradwire.TimeoutError: the job has failed.
        """
        tickets = []
        for place, (spec, run) in enumerate(zip(request.tensors, runs, strict=True)):
            key = self._key(f"{request.name}.{place}", spec, request.codec)
            tickets.append(self._store.engine.push_pull(key, run, run, priority, scale))
        return tickets

    def stand_in(self, request: Request) -> None:
        """Gives zeros for a rank that has joined; what its codec has not sent yet goes with them."""
        runs = [self._library.zeros(spec.shape, "float32") for spec in request.tensors]
        self._given = [(ticket, run) for ticket, run in self._given if not ticket.done]
        self._given += zip(self.send(request, runs, 0, 1.0), runs, strict=True)

    def _key(self, name: str, spec: TensorSpec, codec: str) -> int:
        known = self._keys.get((name, spec, codec))
        if known is not None:
            return known
        wire_name = f"horovod.{name} {spec} by {codec}"
        (key,) = self._store.engine.declare([(wire_name, list(spec.shape), "float32")])
        spec_text, _, reply = codec.rpartition(" ")
        self._store.engine.set_key_compression([key], spec_text, reply)
        self._keys[name, spec, codec] = key
        return key
