"""SubGroup: the collectives of some ranks, made of the one in which every rank says what each other one gets.

The same methods as `KVStore.collectives`, for the members; every other rank calls stand_by() at the same place, and
it neither sends nor gets an element. Results are made in rank order. A sum moves 2(n-1)/n of its bytes per member, as
all ranks' does.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from gradwire.collectives import Collectives
from gradwire.horovod.array_library import ArrayLibrary, near_equal, wide_type


class SubGroup:
    """The members of one process set, on one rank of the job. Arrays are flat."""

    def __init__(
        self, collectives: Collectives, library: ArrayLibrary, members: Sequence[int], rank: int, size: int
    ) -> None:
        """
        Args:
            collectives: of all ranks.
            library: of the arrays.
            members: ranks, in order.
            rank, size: of this process among all.
        """
        self._collectives = collectives
        self._library = library
        self._members = tuple(members)
        self._rank = rank
        self._size = size

    def stand_by(self, dtype: str) -> None:
        """Takes part as a rank that is no member: twice for an all_reduce, else once."""
        self._collectives.all_to_all([self._library.zeros((0,), dtype)] * self._size)

    def all_to_all(self, arrays: Sequence[Any]) -> list[Any]:
        """Gives the i-th member the i-th array; returns what each member had for this one."""
        blocks = [arrays[0][:0]] * self._size
        for member, array in zip(self._members, arrays, strict=True):
            blocks[member] = array
        received = self._collectives.all_to_all(blocks)
        return [received[member] for member in self._members]

    def all_gather(self, array: Any) -> list[Any]:
        """Gives every member the arrays of all."""
        return self.all_to_all([array] * len(self._members))

    def broadcast(self, array: Any, root: int) -> Any:
        """Writes root's array, of the job's rank root, to everybody's."""
        given = array if self._rank == root else array[:0]
        received = self.all_gather(given)[self._members.index(root)]
        if self._rank != root:
            self._library.write(array, received)
        return array

    def all_reduce(self, array: Any, op: str, out: Any) -> Any:
        """Combines the arrays element by element and writes the result to out."""
        shares = self._library.parts(array, near_equal(array.shape[0], len(self._members)))
        own = self._combined(self.all_to_all(shares), op)
        return self._library.joined(self.all_gather(own), out)

    def reduce_scatter(self, shares: Sequence[Any], op: str) -> Any:
        """As all_reduce, of an array that lies in one share for each member, and the i-th gets the i-th."""
        return self._combined(self.all_to_all(shares), op)

    def _combined(self, arrays: Sequence[Any], op: str) -> Any:
        """Combines in rank order; half-precision ones in float32, rounded once."""
        own = self._library.spec_of(arrays[0]).dtype
        wide = [self._library.cast(array, wide_type(own)) for array in arrays]
        combine = functools.partial(self._library.combined, "sum" if op == "average" else op)
        total = functools.reduce(combine, wide)
        return self._library.cast(total / len(arrays) if op == "average" else total, own)
