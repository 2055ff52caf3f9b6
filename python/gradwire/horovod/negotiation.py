"""Negotiation: finds out which operations all their ranks have asked for, whatever the order in which each did.

Ranks tell each other in rounds what they newly ask for (an all-gather of announcements), and each then works out alone,
by the same rule from the same announcements, what is ready and in which order. So there is no coordinating rank, every
rank runs the same operations in the same order, and a rank may submit tensors in any order. An operation whose ranks
differ in a shape or a type is ready too, as an error that is the same on all.

Ranks without data left (join) count as having asked for every sum, and give zeros.

Only a rank that has a gradient knows whether it is sparse. One that has not used the parameter submits a sum of zeros;
if others gather rows, that sum is given back, and the rank gathers no rows in its place.

Pure: no thread, no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradwire.horovod.agreement import disagreement
from gradwire.horovod.request import GLOBAL_SET, Key, Kind, Request

_STAND_INS_GIVE_ZEROS = ("sum", "average")


@dataclass(frozen=True)
class Response:
    """An operation that is to run now, on all ranks.

    Attributes:
        requests: by rank, in rank order; those that have joined are not there.
        members: of its process set, in order.
        error: what to fail with instead, the same text on all ranks.
        value: what it comes to where nothing has to run: the id of a set that was added (None: there is one of these
            ranks), whether one was removed, the rank that joined last.
        is_gathered: of a sum of zeros: it is not run, since other ranks gather the gradient's rows.
    """

    key: Key
    requests: Mapping[int, Request]
    members: tuple[int, ...]
    error: str | None = None
    value: int | bool | None = None
    is_gathered: bool = False

    @property
    def request(self) -> Request:
        """That of its lowest rank: the same as the others', but for rows and splits."""
        return next(iter(self.requests.values()))


class Negotiation:
    """What one rank knows of all ranks' requests; equal on all of them after each round.

    Attributes:
        process_sets: members by id; 0 is all ranks.
        joined: ranks that have no data left, in the order in which they said so.
    """

    def __init__(self, ranks: int) -> None:
        self.process_sets: dict[int, tuple[int, ...]] = {GLOBAL_SET: tuple(range(ranks))}
        self.joined: list[int] = []
        self._pending: dict[Key, dict[int, Request]] = {}  # and by rank
        self._rows: dict[Key, Key] = {}  # gathers of sparse gradients that wait, by the sum in their place
        self._next_set = GLOBAL_SET + 1

    def take(self, announced: Sequence[Sequence[Request]]) -> list[Response]:
        """Takes in a round: what each rank newly asks for, by rank. Returns what is ready, in the order to run it."""
        ready: list[Response] = []
        for rank, requests in enumerate(announced):
            for request in requests:
                self._pending.setdefault(request.key, {})[rank] = request
                if request.kind == "join":
                    self.joined.append(rank)
                    for key in list(self._pending):
                        self._try(key, ready)
                else:
                    self._try(request.key, ready)
                self._part_dense_from_sparse(request, ready)
        return ready

    def missing(self) -> dict[Key, tuple[list[int], list[int]]]:
        """What is asked for and not ready: the ranks that have asked, and those that have not."""
        return {
            key: (sorted(requests), self._absent(key, requests)) for key, requests in self._pending.items()
        }

    def members(self, key: Key) -> tuple[int, ...]:
        """The members of a key's process set; none where it has been removed."""
        return self.process_sets.get(key.process_set, ())

    def _absent(self, key: Key, requests: Mapping[int, Request]) -> list[int]:
        away = [] if key.kind == "join" else self.joined
        return [rank for rank in self.members(key) if rank not in requests and rank not in away]

    def _try(self, key: Key, ready: list[Response]) -> None:
        requests = self._pending.get(key)
        if requests is None or self._absent(key, requests):
            return
        del self._pending[key]
        ready.append(self._response(key, dict(sorted(requests.items()))))
        if key.kind == "remove_process_set":
            self._drop_orphans(ready)

    def _part_dense_from_sparse(self, request: Request, ready: list[Response]) -> None:
        """A gradient that is dense on some ranks and sparse on others is asked for by two keys, of which neither would
        ever be ready.
        """
        if request.dense_name:
            self._rows[Key(request.process_set, "allreduce", request.dense_name)] = request.key
        for dense, rows in list(self._rows.items()):
            if (of_rows := self._pending.get(rows)) is None:
                del self._rows[dense]
            elif (sums := self._pending.get(dense)) is None:
                continue
            elif all(one.is_unused for one in sums.values()):
                del self._pending[dense]
                ready.append(Response(dense, sums, self.members(dense), is_gathered=True))
            elif not self._absent(dense, sums | of_rows):
                del self._pending[dense], self._pending[rows], self._rows[dense]
                error = (
                    f"{dense}: the gradient is dense on rank {min(sums)} and sparse on rank {min(of_rows)}; give "
                    "DistributedOptimizer sparse_as_dense=True on all ranks"
                )
                ready += (Response(key, sums, self.members(key), error) for key in (dense, rows))

    def _response(self, key: Key, requests: dict[int, Request]) -> Response:
        members = self.members(key)
        if not members:
            return Response(key, requests, (), f"{key}: its process set has been removed")
        error = disagreement(requests, members) or self._refused_while_joined(key, requests, members)
        if error is not None:
            return Response(key, requests, members, error)
        return Response(key, requests, members, value=self._settle(key.kind, requests))

    def _refused_while_joined(
        self, key: Key, requests: Mapping[int, Request], members: Sequence[int]
    ) -> str | None:
        away = [rank for rank in self.joined if rank in members and rank not in requests]
        first = next(iter(requests.values()))
        if not away or key.kind == "barrier":
            return None
        if key.kind == "allreduce" and first.op in _STAND_INS_GIVE_ZEROS:
            return None
        what = f"{key} ({first.op})" if key.kind == "allreduce" else str(key)
        return (
            f"{what}: rank {away[0]} has called join(), and has nothing to give but zeros for a sum; call it before "
            "any rank joins, or after all have"
        )

    def _settle(self, kind: Kind, requests: Mapping[int, Request]) -> int | bool | None:
        """What an operation comes to that is over once all have asked for it."""
        first = next(iter(requests.values()))
        if kind == "join":
            last, self.joined = self.joined[-1], []
            return last
        if kind == "add_process_set":
            return self._add(first.ranks)
        if kind == "remove_process_set":
            return self.process_sets.pop(first.ranks[0], None) is not None
        return None

    def _add(self, ranks: tuple[int, ...]) -> int | None:
        if ranks in self.process_sets.values():
            return None
        added, self._next_set = self._next_set, self._next_set + 1
        self.process_sets[added] = ranks
        return added

    def _drop_orphans(self, ready: list[Response]) -> None:
        for key in [key for key in self._pending if not self.members(key)]:
            self._try(key, ready)
