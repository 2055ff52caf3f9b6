"""The process group through which an FSDP module all-reduces its shard, where those sums travel compressed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

SumInPlace = Callable[[torch.Tensor, Any], None]


class ReplicaGroup(dist.ProcessGroup):
    """Stands in for torch's group of one module's replicas. It equals that, so torch finds the backend and the name of
    either when it logs what a collective has raised.
    """

    def __init__(self, group: dist.ProcessGroup, sum_in_place: SumInPlace) -> None:
        """
        Args:
            group: torch's.
            sum_in_place: called with the module's gradients on this rank, and the ReduceOp.
        """
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self.group = group
        self._sum_in_place = sum_in_place

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.group

    def __hash__(self) -> int:
        return hash(self.group)

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> None:  # type: ignore[override]
        """As torch.distributed.all_reduce() calls it."""
        (tensor,) = tensors
        self._sum_in_place(tensor, options.reduceOp)
