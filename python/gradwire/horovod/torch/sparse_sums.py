"""Sums of sparse tensors, by gathering their non-zero values."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gradwire.horovod import reduce_ops
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.horovod.submission import synchronize
from gradwire.horovod.torch.gathers import allgather_async


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Sums sparse tensors: their values are gathered, and every rank adds up what it receives.

    Args:
        tensor: sparse, of the same shape and number of sparse dimensions on all ranks.
        name: name by which ranks match operations.
        op: hvd.Average or hvd.Sum.

    Returns: a function that waits, and returns the sum, sparse and coalesced.

    Raises: ValueError: another op, or a dense tensor.
    """
    if op not in (reduce_ops.Average, reduce_ops.Sum):
        raise ValueError(
            f"hvd.sparse_allreduce_async: op is {reduce_ops.name_of(op)}, expected Average or Sum"
        )
    if not tensor.is_sparse:
        raise ValueError("hvd.sparse_allreduce_async: the tensor is dense; use allreduce_async()")
    own = tensor.coalesce()
    indices = allgather_async(own.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(own.values(), f"{name}.values", process_set)

    gathered: list[torch.Tensor] = []

    def wait() -> torch.Tensor:
        for handle in (indices, values)[len(gathered) :]:  # again after a Ctrl-C
            gathered.append(synchronize(handle))
        where, what = gathered[0].t(), gathered[1]
        if op == reduce_ops.Average:
            what = what / len(process_set.members())
        total = torch.sparse_coo_tensor(
            where, what, tensor.shape, device=tensor.device, check_invariants=True
        )
        return total.coalesce()

    return wait
