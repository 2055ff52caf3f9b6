"""Execution: runs what all ranks have asked for, on torch tensors, by the store's collectives.

Sums of a round that have the same type, operation and factors travel together (Horovod's tensor fusion), up to a
number of bytes; they are the same bits as apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradwire import kv
from gradwire.collectives import Collectives
from gradwire.horovod.handle import Handle
from gradwire.horovod.negotiation import Response
from gradwire.horovod.request import Key, Request, TensorSpec
from gradwire.horovod.timeline import Timeline
from gradwire.horovod.torch import wire
from gradwire.horovod.torch.adasum import adasum
from gradwire.horovod.torch.named_sums import NamedSums
from gradwire.horovod.torch.subgroup import SubGroup

Group = Collectives | SubGroup  # the same methods, of all ranks and of some


@dataclass
class Tensors:
    """What a rank gives with a request.

    Attributes:
        given: as they travel (wire.staged()).
        targets: where results are written that have the shape of what was given: of its type, contiguous, on the CPU;
            may be the same memory.
        deliver: makes the operation's result of these, or of the new tensors that an operation without targets gives,
            and of the requests of all ranks. On the thread that waits.
        priority: of compressed sums: the higher, the sooner.
    """

    given: Sequence[torch.Tensor]
    targets: Sequence[torch.Tensor]
    deliver: Callable[[Sequence[torch.Tensor], Response], Any]
    priority: int = 0


class Execution:
    """The executor of one rank. On the coordinator's thread."""

    def __init__(self, store: kv.KVStore, timeline: Timeline, fusion_bytes: int) -> None:
        self._store = store
        self._timeline = timeline
        self._fusion_bytes = fusion_bytes
        self._named_sums = NamedSums(store)

    def execute(self, responses: Sequence[Response], handles: Mapping[Key, Handle]) -> None:
        """See Executor."""
        for batch in _batches(responses, self._fusion_bytes):
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
        elif first.key.kind == "allreduce" and request.codec:
            self._compressed(first, handle)
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
        return SubGroup(store.collectives, response.members, store.rank, store.num_workers)

    def _stands_by(self, response: Response, exchanged: Iterable[TensorSpec]) -> bool:
        """Takes part in the members' exchanges where this rank is no member of the set.

        Args:
            exchanged: a tensor of each exchange, whose type it has on all ranks.
        """
        if self._store.rank in response.members:
            return False
        for spec in exchanged:
            self._subgroup(response).stand_by(wire.dtype_of(spec))
        return True

    # ------------------------------------------------------------------ sums

    def _compressed(self, response: Response, handle: Handle | None) -> None:
        request = response.request
        if handle is None:
            return self._named_sums.stand_in(request)
        tensors: Tensors = handle.payload
        runs = [wire.scaled(given, request.prescale).to(torch.float32, copy=True) for given in tensors.given]
        scale = request.postscale / (len(response.members) if request.op == "average" else 1)
        tickets = self._named_sums.send(request, runs, tensors.priority, scale)

        def deliver() -> Any:
            results = [t.copy_(run) for t, run in zip(tensors.targets, runs, strict=True)]
            return tensors.deliver(results, response)

        return handle.complete(deliver, tickets)

    def _all_reduce(self, batch: Sequence[Response], handles: Mapping[Key, Handle]) -> None:
        """Sums a batch in one exchange for each type: of several where one of mixed types is the batch."""
        first = batch[0]
        specs = [spec for response in batch for spec in response.request.tensors]
        types = {spec.dtype: spec for spec in specs}
        if self._stands_by(first, [spec for spec in types.values() for _ in range(2)]):
            return
        given = [tensor for response in batch for tensor in _given(response, handles.get(response.key))]
        out = handles[first.key].payload.targets[0].view(-1) if len(given) == 1 and handles else None
        parts = {
            dtype: iter(
                self._summed(first, [t for t, s in zip(given, specs, strict=True) if s.dtype == dtype], out)
            )
            for dtype in types
        }
        for response in batch:
            own = [next(parts[spec.dtype]) for spec in response.request.tensors]
            if (handle := handles.get(response.key)) is not None:
                _deliver_to_targets(response, handle, own)

    def _summed(
        self, response: Response, given: Sequence[torch.Tensor], out: torch.Tensor | None
    ) -> Sequence[torch.Tensor]:
        """Sums tensors of one type in one exchange.

        Args:
            response: whose members and factors they have.
            out: where the sum of a tensor that is alone may be written.
        """
        request = response.request
        flat = wire.scaled(_joined(given), request.prescale)
        total = torch.empty_like(flat) if out is None else out
        self._group(response).all_reduce(flat, _op_on_the_way(request, flat), out=total)
        total = _finished(request, total, len(response.members))
        parts: Sequence[torch.Tensor] = total.split([tensor.numel() for tensor in given])  # type: ignore[no-untyped-call]
        return parts

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
            _deliver_to_targets(response, handle, results)
        else:
            handle.complete(lambda: tensors.deliver(results, response))

    def _all_gather(self, response: Response, place: int, given: torch.Tensor) -> torch.Tensor:
        shapes = [request.tensors[place].shape for request in response.requests.values()]
        pieces = self._group(response).all_gather(given.view(-1))
        return torch.cat([piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)])

    def _adasum(self, response: Response, place: int, given: torch.Tensor) -> torch.Tensor:
        request = response.request
        pieces = self._group(response).all_gather(wire.scaled(given, request.prescale).view(-1))
        return wire.scaled(adasum(pieces), request.postscale)

    def _broadcast(self, response: Response, place: int, given: torch.Tensor) -> torch.Tensor:
        root = response.request.root
        buffer = given.view(-1) if root == self._store.rank else torch.empty_like(given.view(-1))
        return self._group(response).broadcast(buffer, root)

    def _all_to_all(self, response: Response, place: int, given: torch.Tensor) -> torch.Tensor:
        own, row = response.members.index(self._store.rank), given.shape[1:]
        blocks = given[: sum(_splits(response, own))].split(_splits(response, own))  # type: ignore[no-untyped-call]
        received = self._group(response).all_to_all([block.reshape(-1) for block in blocks])
        rows = [_splits(response, member)[own] for member in range(len(response.members))]
        return torch.cat([piece.view(count, *row) for piece, count in zip(received, rows, strict=True)])

    def _reduce_scatter(self, response: Response, place: int, given: torch.Tensor) -> torch.Tensor:
        request, row = response.request, given.shape[1:]
        own, members = response.members.index(self._store.rank), len(response.members)
        rows = [part.shape[0] for part in torch.tensor_split(given, members)]
        flat = wire.scaled(given, request.prescale).reshape(-1)
        shares = flat.split([count * row.numel() for count in rows])  # type: ignore[no-untyped-call]
        total = self._subgroup(response).reduce_scatter(shares, _op_on_the_way(request, flat))
        return _finished(request, total, members).view(rows[own], *row)


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


def _op_on_the_way(request: Request, values: torch.Tensor) -> str:
    """The store's collectives have no mean of integers."""
    return "sum" if request.op == "average" and not values.is_floating_point() else request.op


def _finished(request: Request, total: torch.Tensor, members: int) -> torch.Tensor:
    """Returns what is left to do to a sum: the mean of integers, cut off towards zero, and the factor behind it."""
    if _op_on_the_way(request, total) != request.op:
        total = torch.div(total, members, rounding_mode="trunc")
    return wire.scaled(total, request.postscale)


def _given(response: Response, handle: Handle | None) -> list[torch.Tensor]:
    """This rank's tensors; zeros where it has joined."""
    if handle is not None:
        return list(handle.payload.given)
    return [torch.zeros(spec.shape, dtype=wire.dtype_of(spec)) for spec in response.request.tensors]


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0].view(-1) if len(tensors) == 1 else torch.cat([tensor.view(-1) for tensor in tensors])


def _deliver_to_targets(response: Response, handle: Handle, values: Sequence[torch.Tensor]) -> None:
    tensors: Tensors = handle.payload
    for target, value in zip(tensors.targets, values, strict=True):
        wire.delivered(value, target)
    handle.complete(lambda: tensors.deliver(tensors.targets, response))


def _splits(response: Response, member: int) -> list[int]:
    return list(response.requests[response.members[member]].splits)


def _fuses_as(request: Request) -> tuple[Any, ...] | None:
    """What sums that travel together have in common; None: this one travels by itself."""
    dtypes = {spec.dtype for spec in request.tensors}
    if request.kind != "allreduce" or request.codec or request.op == "adasum" or len(dtypes) != 1:
        return None
    return (request.process_set, request.op, request.prescale, request.postscale, *dtypes)


def _bytes(request: Request) -> int:
    return sum(torch.Size(s.shape).numel() * wire.dtype_of(s).itemsize for s in request.tensors)


def _batches(responses: Sequence[Response], most_bytes: int) -> list[list[Response]]:
    """Puts together what may travel together; the same on all ranks."""
    batches: list[list[Response]] = []
    open_batch: dict[tuple[Any, ...], tuple[list[Response], int]] = {}
    for response in responses:
        kind, size = _fuses_as(response.request), _bytes(response.request)
        batch, used = open_batch.get(kind, ([], 0)) if kind is not None else ([], 0)
        if not batch or used + size > most_bytes:
            batch, used = [], 0
            batches.append(batch)
        batch.append(response)
        if kind is not None:
            open_batch[kind] = (batch, used + size)
    return batches
