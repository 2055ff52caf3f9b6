"""Sums of sparse tensors, by gathering their non-zero values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gradwire.horovod import reduce_ops
from gradwire.horovod.negotiation import Response
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.horovod.submission import synchronize
from gradwire.horovod.torch.submission import submit


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
    return sum_rows(tensor, name, op, process_set)


def sum_rows(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet, dense_name: str = ""
) -> Callable[[], torch.Tensor]:
    """As sparse_allreduce_async(). dense_name: as Request.dense_name, of an optimizer's gradient."""
    if op not in (reduce_ops.Average, reduce_ops.Sum):
        raise ValueError(
            f"hvd.sparse_allreduce_async: op is {reduce_ops.name_of(op)}, expected Average or Sum"
        )
    if not tensor.is_sparse:
        raise ValueError("hvd.sparse_allreduce_async: the tensor is dense; use allreduce_async()")
    own = tensor.coalesce()
    pair = [own.indices().t().contiguous(), own.values()]

    def deliver(gathered: Sequence[torch.Tensor], _: Response) -> list[torch.Tensor]:
        return [all_of.to(its.device, its.dtype) for all_of, its in zip(gathered, pair, strict=True)]

    handle = submit(
        *("allgather", pair, deliver),
        name=f"{name}.rows",
        process_set=process_set,
        has_targets=False,
        dense_name=dense_name,
    )

    def wait() -> torch.Tensor:
        where, what = synchronize(handle)
        if op == reduce_ops.Average:
            what = what / len(process_set.members())
        total = torch.sparse_coo_tensor(
            where.t(), what, tensor.shape, device=tensor.device, check_invariants=True
        )
        return total.coalesce()

    return wait


def no_rows(like: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    """Returns a sparse tensor of zeros, of which no row travels."""
    indices = torch.zeros((sparse_dim, 0), dtype=torch.int64, device=like.device)
    values = torch.zeros((0, *like.shape[sparse_dim:]), dtype=like.dtype, device=like.device)
    return torch.sparse_coo_tensor(indices, values, like.shape, check_invariants=True)
