"""NamedSums: sums that travel under keys of the store, by priority and several at once, while the next are negotiated.

Those that a codec compresses: the store keeps, by key, what a codec has not sent yet (error feedback), so a name is
always the same tensor. And exact ones of float32 of all ranks, whose bits are those of the store's collectives, once
their name comes a second time: a key is kept for as long as the store, and what comes once shall cost none.

Keys are declared when their operations are negotiated, so at the same place on all ranks; after that sums are pushed
and come back in any order.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradwire import _core, kv
from gradwire.horovod.array_library import ArrayLibrary
from gradwire.horovod.errors import HorovodInternalError
from gradwire.horovod.negotiation import Response
from gradwire.horovod.request import Request, TensorSpec

_MOST_SEEN = 1 << 16  # names that have come once: a script may number its names for ever

Specs = tuple[TensorSpec, ...]
Name = tuple[str, TensorSpec, str]
Unsent = dict[Name, Any]


@dataclass
class _Names:
    """What all ranks know of names.

    Attributes:
        keys: by the name of a tensor, its shape and its codec, which is empty for an exact sum.
        exact: tensors of the exact sums that have keys; a name has those of one shape.
        seen: of those that have come once since.
        awaited: what this rank's codecs have not sent yet of names that have no key yet.
    """

    keys: dict[Name, int] = field(default_factory=dict)
    exact: dict[str, Specs] = field(default_factory=dict)
    seen: dict[str, Specs] = field(default_factory=dict)
    awaited: Unsent = field(default_factory=dict)


# A store's keys outlive init() and shutdown().
_names_of: weakref.WeakKeyDictionary[kv.KVStore, _Names] = weakref.WeakKeyDictionary()


def unsent(store: kv.KVStore) -> Unsent:
    """Returns what this rank's codecs have not sent yet, float32 (elements,), by name. Waits for its own sums.

    Raises: HorovodInternalError: the job's members have changed, or it has failed.
    """
    names = _names_of.setdefault(store, _Names())
    compressed = {name: key for name, key in names.keys.items() if name[-1]}
    if compressed:
        _await_sums(store)
    found = {name: store.engine.residual(key) for name, key in compressed.items()}
    return {name: residual for name, residual in found.items() if residual.any()} | names.awaited


def go_on_with(store: kv.KVStore, unsent: Unsent) -> None:
    """Has the next sums send what unsent() returned, maybe of another store; of names that this one does not know yet
    with their first. Waits, and raises, as unsent() does.
    """
    names = _names_of.setdefault(store, _Names())
    compressed = {name: key for name, key in names.keys.items() if name[-1]}
    if compressed:
        _await_sums(store)
    for name, key in compressed.items():
        zeros = np.zeros(math.prod(name[1].shape), np.float32)
        store.engine.set_residual(key, unsent.get(name, zeros))
    names.awaited = {name: residual for name, residual in unsent.items() if name not in names.keys}


def _await_sums(store: kv.KVStore) -> None:
    try:
        store.engine.await_rounds()
    except (ConnectionError, TimeoutError) as error:
        raise HorovodInternalError(f"sums that are under way: {error}") from error


class NamedSums:
    """The sums of one store that have keys. On the coordinator's thread."""

    def __init__(self, store: kv.KVStore, library: ArrayLibrary) -> None:
        self._store = store
        self._library = library
        self._names = _names_of.setdefault(store, _Names())
        self._given: list[tuple[_core.Ticket, Any]] = []  # by stand-ins, whom nobody waits for

    def taken(self, responses: Sequence[Response]) -> list[Response]:
        """Returns those that travel under keys, in their order, with their keys declared. A collective where new ones
        are.

        Raises: gradwire.TransportError, gradwire.TimeoutError: the job has failed.
        """
        found = [
            response
            for response in responses
            if response.key.kind == "allreduce" and (response.request.codec or self._comes_again(response))
        ]
        self._declare([response.request for response in found])
        return found

    def send(
        self, request: Request, runs: Sequence[Any], outs: Sequence[Any], priority: int, scale: float
    ) -> list[_core.Ticket]:
        """Pushes float32 runs. When the tickets are done, outs, which may be the same memory, hold sums times scale.

        Raises: as taken().
        """
        tickets = []
        for place, (spec, run, out) in enumerate(zip(request.tensors, runs, outs, strict=True)):
            key = self._names.keys[f"{request.name}.{place}", spec, request.codec]
            tickets.append(self._store.engine.push_pull(key, run, out, priority, scale))
        return tickets

    def stand_in(self, request: Request) -> None:
        """Gives zeros for a rank that has joined; what its codec has not sent yet goes with them."""
        runs = [self._library.zeros(spec.shape, "float32") for spec in request.tensors]
        self._given = [(ticket, run) for ticket, run in self._given if not ticket.done]
        self._given += zip(self.send(request, runs, runs, 0, 1.0), runs, strict=True)

    def _comes_again(self, response: Response) -> bool:
        """Whether it is an exact sum that has a key, or gets one now. The same on all ranks, which have seen the same
        responses."""
        request, names = response.request, self._names
        if not self._is_for_keys(response):
            return False
        if request.name not in names.exact:
            if names.seen.pop(request.name, None) == request.tensors:
                names.exact[request.name] = request.tensors
            else:
                names.seen[request.name] = request.tensors
                if len(names.seen) > _MOST_SEEN:
                    del names.seen[next(iter(names.seen))]
        return names.exact.get(request.name) == request.tensors

    def _is_for_keys(self, response: Response) -> bool:
        """Whether the store's rounds would sum it as its collectives do."""
        return (
            1 < len(response.members) == self._store.num_workers
            and response.request.op in ("sum", "average")
            and all(spec.dtype == "float32" and spec.bytes for spec in response.request.tensors)
            and not self._store.keeps_weights
        )

    def _declare(self, requests: Sequence[Request]) -> None:
        wanted = [
            (f"{request.name}.{place}", spec, request.codec)
            for request in requests
            for place, spec in enumerate(request.tensors)
        ]
        new = [each for each in wanted if each not in self._names.keys]
        if not new:
            return
        engine = self._store.engine
        keys = engine.declare([(_wire_name(*each), list(each[1].shape), "float32") for each in new])
        by_codec: dict[str, list[int]] = {}
        for key, (_, _, codec) in zip(keys, new, strict=True):
            by_codec.setdefault(codec or "none none", []).append(key)
        for codec, own in by_codec.items():
            spec_text, _, reply = codec.rpartition(" ")
            engine.set_key_compression(own, spec_text, reply)
        self._names.keys.update(zip(new, keys, strict=True))
        for name, key in zip(new, keys, strict=True):
            if (residual := self._names.awaited.pop(name, None)) is not None:
                engine.set_residual(key, residual)


def _wire_name(name: str, spec: TensorSpec, codec: str) -> str:
    """A key's name on the wire, of which tabs and line breaks cannot be part."""
    shown = repr(name)[1:-1]
    return f"horovod.{shown} {spec} by {codec}" if codec else f"horovod.{shown} {spec}"
