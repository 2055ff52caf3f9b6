"""The process group through which an FSDP module all-reduces its shard, where those sums travel compressed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

SumInPlace = Callable[[torch.Tensor, Any], None]


class ReplicaGroup(dist.ProcessGroup):
    """Stands in for torch's group of one module's replicas."""

    def __init__(self, group: dist.ProcessGroup, sum_in_place: SumInPlace) -> None:
        """
        Args:
            group: torch's.
            sum_in_place: called with the module's gradients on this rank, and the ReduceOp.
        """
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self.group = group
        self._sum_in_place = sum_in_place

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> None:  # type: ignore[override]
        """As torch.distributed.all_reduce() calls it."""
        (tensor,) = tensors
        self._sum_in_place(tensor, options.reduceOp)
