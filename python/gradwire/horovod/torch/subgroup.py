"""SubGroup: the collectives of some ranks, made of the one in which every rank says what each other one gets.

The same methods as `KVStore.collectives`, for the members; every other rank calls stand_by() at the same place, and
it neither sends nor gets an element. Results are made in rank order. A sum moves 2(n-1)/n of its bytes per member, as
all ranks' does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from gradwire.collectives import Collectives

_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "average": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "product": torch.mul,
}


class SubGroup:
    """The members of one process set, on one rank of the job. Arrays are flat tensors on the CPU."""

    def __init__(self, collectives: Collectives, members: Sequence[int], rank: int, size: int) -> None:
        """
        Args:
            collectives: of all ranks.
            members: ranks, in order.
            rank, size: of this process among all.
        """
        self._collectives = collectives
        self._members = tuple(members)
        self._rank = rank
        self._size = size

    def stand_by(self, dtype: torch.dtype) -> None:
        """Takes part as a rank that is no member: twice for an all_reduce, else once."""
        self._collectives.all_to_all([torch.empty(0, dtype=dtype)] * self._size)

    def all_to_all(self, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Gives the i-th member the i-th array; returns what each member had for this one."""
        blocks = [arrays[0].new_empty(0)] * self._size
        for member, array in zip(self._members, arrays, strict=True):
            blocks[member] = array
        received = self._collectives.all_to_all(blocks)
        return [received[member] for member in self._members]

    def all_gather(self, array: torch.Tensor) -> list[torch.Tensor]:
        """Gives every member the arrays of all."""
        return self.all_to_all([array] * len(self._members))

    def broadcast(self, array: torch.Tensor, root: int) -> torch.Tensor:
        """Writes root's array, of the job's rank root, to everybody's."""
        given = array if self._rank == root else array.new_empty(0)
        received = self.all_gather(given)[self._members.index(root)]
        return array if self._rank == root else array.copy_(received)

    def all_reduce(self, array: torch.Tensor, op: str, out: torch.Tensor) -> torch.Tensor:
        """Combines the arrays element by element and writes the result to out."""
        shares = torch.tensor_split(array, len(self._members))
        own = _combined(self.all_to_all(shares), op)
        return torch.cat(self.all_gather(own), out=out)

    def reduce_scatter(self, shares: Sequence[torch.Tensor], op: str) -> torch.Tensor:
        """As all_reduce, of an array that lies in one share for each member, and the i-th gets the i-th."""
        return _combined(self.all_to_all(shares), op)


def _combined(arrays: Sequence[torch.Tensor], op: str) -> torch.Tensor:
    """Combines in rank order; half-precision ones in float32, rounded once."""
    dtype = arrays[0].dtype
    wide = [array.float() if dtype in (torch.float16, torch.bfloat16) else array for array in arrays]
    total = functools.reduce(_COMBINE[op], wide)
    return (total / len(arrays) if op == "average" else total).to(dtype)
