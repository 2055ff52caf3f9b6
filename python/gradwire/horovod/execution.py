"""Execution: runs what all ranks have asked for, on the arrays of one library.

Sums that have keys of the store (named_sums.py) are sent first, and are under way while all else runs: by the store's
collectives, one after the other. Of these sums of a round that have the same type, operation and factors travel
together (Horovod's tensor fusion), up to a number of bytes; they are the same bits as apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire import kv
from gradwire.collectives import Collectives
from gradwire.horovod.adasum import adasum
from gradwire.horovod.array_library import ArrayLibrary, near_equal, scaled, wide_type
from gradwire.horovod.handle import Handle
from gradwire.horovod.named_sums import NamedSums
from gradwire.horovod.negotiation import Response
from gradwire.horovod.request import Key, Request, TensorSpec
from gradwire.horovod.subgroup import SubGroup
from gradwire.horovod.timeline import Timeline

_NARROW_INTEGERS = ("uint8", "int8", "int32")  # of those that the collectives have

Group = Collectives | SubGroup  # the same methods, of all ranks and of some


@dataclass
class Tensors:
    """What a rank gives with a request.

    Attributes:
        given: arrays as they travel: contiguous, on the CPU, of a type that the store's collectives have.
        targets: where results are written that have the shape of what was given: likewise, of its type;
            may be the same memory.
        deliver: makes the operation's result of these, or of the new tensors that an operation without targets gives,
            and of the requests of all ranks. On the thread that waits.
        priority: of sums that have keys: the higher, the sooner.
    """

    given: Sequence[Any]
    targets: Sequence[Any]
    deliver: Callable[[Sequence[Any], Response], Any]
    priority: int = 0


class Execution:
    """The executor of one rank. On the coordinator's thread."""

    def __init__(
        self, store: kv.KVStore, library: ArrayLibrary, timeline: Timeline, fusion_bytes: int
    ) -> None:
        """
        Args:
            library: of the arrays that requests come with.
            fusion_bytes: up to which sums travel together.
        """
        self._store = store
        self._library = library
        self._timeline = timeline
        self._fusion_bytes = fusion_bytes
        self._named_sums = NamedSums(store, library)

    def execute(self, responses: Sequence[Response], handles: Mapping[Key, Handle]) -> None:
        """See Executor."""
        under_keys = self._named_sums.taken(responses)
        for response in under_keys:
            self._send(response, handles.get(response.key))
        sent = {response.key for response in under_keys}
        others = [response for response in responses if response.key not in sent]
        for batch in _batches(others, self._fusion_bytes):
            own = {response.key: handles[response.key] for response in batch if response.key in handles}
            for key in own:
                self._timeline.execution_begins(key)
            self._run(batch, own)
            for key in own:
                self._timeline.execution_ends(key)

    def _run(self, batch: Sequence[Response], handles: Mapping[Key, Handle]) -> None:
        first = batch[0]
        request, handle = first.request, handles.get(first.key)
        if first.key.kind == "call":
            _call(handle)
        elif first.key.kind == "allreduce" and request.op != "adasum":
            self._all_reduce(batch, handles)
        elif request.tensors:
            self._apart(first, handle)
        elif handle is not None:
            handle.complete(lambda: first.value)

    def _group(self, response: Response) -> Group:
        if len(response.members) == self._store.num_workers:
            return self._store.collectives
        return self._subgroup(response)

    def _subgroup(self, response: Response) -> SubGroup:
        store = self._store
        return SubGroup(store.collectives, self._library, response.members, store.rank, store.num_workers)

    def _stands_by(self, response: Response, exchanged: Iterable[TensorSpec]) -> bool:
        """Takes part in the members' exchanges where this rank is no member of the set.

        Args:
            exchanged: a tensor of each exchange, whose type it has on all ranks.
        """
        if self._store.rank in response.members:
            return False
        for spec in exchanged:
            self._subgroup(response).stand_by(_travels_as(response.request, spec.dtype))
        return True

    # ------------------------------------------------------------------ sums

    def _send(self, response: Response, handle: Handle | None) -> None:
        """Sends a sum under its keys. Whoever waits for it does what is left to do when it is back."""
        request = response.request
        if handle is None:
            return self._named_sums.stand_in(request)
        self._timeline.execution_begins(response.key)
        tensors: Tensors = handle.payload
        ranks = len(response.members) if request.op == "average" else 1
        runs = [scaled(self._library, given, request.prescale) for given in tensors.given]
        outs = tensors.targets
        if request.codec:
            outs = runs = [self._library.copied(run, "float32") for run in runs]
            scale, divisor, factor = request.postscale / ranks, 1, 1.0
        elif ranks & (ranks - 1) == 0:  # 1 / ranks is a float32, and the product the quotient
            scale, divisor, factor = 1 / ranks, 1, request.postscale
        else:
            scale, divisor, factor = 1.0, ranks, request.postscale
        tickets = self._named_sums.send(request, runs, outs, tensors.priority, scale)

        def deliver() -> Any:
            for ticket, out, given in zip(tickets, outs, tensors.given, strict=True):
                self._store.nonfinite.mark(request.name, request.codec or "none", ticket, [out], given)
            for target, out in zip(tensors.targets, outs, strict=True):
                total = out.reshape(-1)
                total = total if divisor == 1 else total / divisor
                self._library.write(target, scaled(self._library, total, factor))
            self._timeline.execution_ends(response.key)
            return tensors.deliver(tensors.targets, response)

        return handle.complete(deliver, tickets)

    def _all_reduce(self, batch: Sequence[Response], handles: Mapping[Key, Handle]) -> None:
        """Sums a batch in one exchange for each type: of several where one of mixed types is the batch."""
        first = batch[0]
        specs = [spec for response in batch for spec in response.request.tensors]
        types = {spec.dtype: spec for spec in specs}
        if self._stands_by(first, [spec for spec in types.values() for _ in range(2)]):
            return
        given = [tensor for response in batch for tensor in self._given(response, handles.get(response.key))]
        out = handles[first.key].payload.targets[0].reshape(-1) if len(given) == 1 and handles else None
        parts = {
            dtype: iter(
                self._summed(first, [t for t, s in zip(given, specs, strict=True) if s.dtype == dtype], out)
            )
            for dtype in types
        }
        for response in batch:
            own = [next(parts[spec.dtype]) for spec in response.request.tensors]
            if (handle := handles.get(response.key)) is not None:
                self._deliver_to_targets(response, handle, own)

    def _summed(self, response: Response, given: Sequence[Any], out: Any | None) -> Sequence[Any]:
        """Sums tensors of one type in one exchange; half-precision ones may come back wider, for delivery to round.

        Args:
            response: whose members and factors they have.
            out: where the sum of a tensor that is alone may be written.
        """
        request = response.request
        flats = [array.reshape(-1) for array in given]
        flat = self._before_the_sum(request, flats[0] if len(flats) == 1 else self._library.joined(flats))
        if out is None or self._library.spec_of(out).dtype != self._library.spec_of(flat).dtype:
            out = self._library.empty_like(flat)
        self._group(response).all_reduce(flat, self._op_on_the_way(request, flat), out=out)
        total = self._after_the_sum(request, out, len(response.members))
        return self._library.parts(total, [len(array) for array in flats])

    def _before_the_sum(self, request: Request, flat: Any) -> Any:
        """Returns values as they are summed: in the type in which they travel, and times the factor in front."""
        values = self._library.cast(flat, _travels_as(request, self._library.spec_of(flat).dtype))
        return scaled(self._library, values, request.prescale)

    def _op_on_the_way(self, request: Request, values: Any) -> str:
        """The store's collectives have no mean of integers."""
        is_of_integers = request.op == "average" and not self._library.is_floating(values)
        return "sum" if is_of_integers else request.op

    def _after_the_sum(self, request: Request, total: Any, members: int) -> Any:
        """Returns what is left to do to a sum: the mean of integers, cut off towards zero, and the factor behind it."""
        if self._op_on_the_way(request, total) != request.op:
            mean = total // members
            total = mean + ((mean < 0) & (mean * members != total))
        return scaled(self._library, total, request.postscale)

    def _given(self, response: Response, handle: Handle | None) -> list[Any]:
        """This rank's tensors; zeros where it has joined."""
        if handle is not None:
            return list(handle.payload.given)
        return [self._library.zeros(spec.shape, spec.dtype) for spec in response.request.tensors]

    def _deliver_to_targets(self, response: Response, handle: Handle, values: Sequence[Any]) -> None:
        tensors: Tensors = handle.payload
        for target, value in zip(tensors.targets, values, strict=True):
            self._library.write(target, value)
        handle.complete(lambda: tensors.deliver(tensors.targets, response))

    # ------------------------------------------------------------------ what travels tensor by tensor

    def _apart(self, response: Response, handle: Handle | None) -> None:
        if self._stands_by(response, response.request.tensors):
            return
        assert handle is not None  # no stand-ins: negotiation refuses these where a rank has joined
        run = {
            "allreduce": self._adasum,
            "allgather": self._all_gather,
            "broadcast": self._broadcast,
            "alltoall": self._all_to_all,
            "reducescatter": self._reduce_scatter,
        }[response.key.kind]
        tensors: Tensors = handle.payload
        results = [run(response, place, given) for place, given in enumerate(tensors.given)]
        if tensors.targets:
            self._deliver_to_targets(response, handle, results)
        else:
            handle.complete(lambda: tensors.deliver(results, response))

    def _all_gather(self, response: Response, place: int, given: Any) -> Any:
        shapes = [request.tensors[place].shape for request in response.requests.values()]
        pieces = self._group(response).all_gather(given.reshape(-1))
        return self._library.joined(
            [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        )

    def _adasum(self, response: Response, place: int, given: Any) -> Any:
        request = response.request
        own = scaled(self._library, given.reshape(-1), request.prescale)
        pieces = self._group(response).all_gather(own)
        return scaled(self._library, adasum(self._library, pieces), request.postscale)

    def _broadcast(self, response: Response, place: int, given: Any) -> Any:
        root, flat = response.request.root, given.reshape(-1)
        buffer = flat if root == self._store.rank else self._library.empty_like(flat)
        return self._group(response).broadcast(buffer, root)

    def _all_to_all(self, response: Response, place: int, given: Any) -> Any:
        own, row = response.members.index(self._store.rank), given.shape[1:]
        blocks = self._library.parts(given[: sum(_splits(response, own))], _splits(response, own))
        received = self._group(response).all_to_all([block.reshape(-1) for block in blocks])
        rows = [_splits(response, member)[own] for member in range(len(response.members))]
        return self._library.joined(
            [piece.reshape((count, *row)) for piece, count in zip(received, rows, strict=True)]
        )

    def _reduce_scatter(self, response: Response, place: int, given: Any) -> Any:
        request, row = response.request, given.shape[1:]
        own, members = response.members.index(self._store.rank), len(response.members)
        rows = near_equal(given.shape[0], members)
        flat = self._before_the_sum(request, given.reshape(-1))
        shares = self._library.parts(flat, [count * math.prod(row) for count in rows])
        total = self._subgroup(response).reduce_scatter(shares, self._op_on_the_way(request, flat))
        share = self._after_the_sum(request, total, members)
        return self._library.cast(share, self._library.spec_of(given).dtype).reshape((rows[own], *row))


def _call(handle: Handle | None) -> None:
    """Runs a function that is a collective of the store by itself. Its ValueErrors are the same on all ranks, and leave
    the store as it was.
    """
    assert handle is not None  # it is of all ranks, and none has joined
    try:
        result = handle.payload()
    except ValueError as error:
        handle.fail(error)
    else:
        handle.complete(lambda: result)


def _travels_as(request: Request, dtype: str) -> str:
    """Returns the type in which a sum's tensors travel. Where a factor comes behind it half-precision ones travel in
    float32, so that they are rounded once; and integers of a mean in 64 bits, as their sum may not fit in their own.
    """
    if request.kind not in ("allreduce", "reducescatter") or request.op == "adasum":
        return dtype
    if request.op == "average" and dtype in _NARROW_INTEGERS:
        return "int64"
    return wide_type(dtype) if request.postscale != 1.0 else dtype


def _splits(response: Response, member: int) -> list[int]:
    return list(response.requests[response.members[member]].splits)


def _fuses_as(request: Request) -> tuple[Any, ...] | None:
    """What sums that travel together have in common; None: this one travels by itself."""
    dtypes = {spec.dtype for spec in request.tensors}
    if request.kind != "allreduce" or request.op == "adasum" or len(dtypes) != 1:
        return None
    return (request.process_set, request.op, request.prescale, request.postscale, *dtypes)


def _batches(responses: Sequence[Response], most_bytes: int) -> list[list[Response]]:
    """Puts together what may travel together; the same on all ranks."""
    batches: list[list[Response]] = []
    open_batch: dict[tuple[Any, ...], tuple[list[Response], int]] = {}
    for response in responses:
        kind, size = _fuses_as(response.request), sum(spec.bytes for spec in response.request.tensors)
        batch, used = open_batch.get(kind, ([], 0)) if kind is not None else ([], 0)
        if not batch or used + size > most_bytes:
            batch, used = [], 0
            batches.append(batch)
        batch.append(response)
        if kind is not None:
            open_batch[kind] = (batch, used + size)
    return batches
