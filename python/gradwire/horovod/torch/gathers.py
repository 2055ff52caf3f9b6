"""allgather: every member gets the tensors of all members, joined."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from gradwire.horovod import reduce_ops
from gradwire.horovod.negotiation import Response
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.horovod.submission import synchronize
from gradwire.horovod.torch import wire
from gradwire.horovod.torch.submission import submit
from gradwire.horovod.torch.sums import grouped_allreduce


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """As allgather(), without waiting and without a gradient. Returns a handle for poll() and synchronize()."""
    wire.require_rows("allgather", [tensor])

    def deliver(gathered: Sequence[torch.Tensor], _: Response) -> torch.Tensor:
        return gathered[0].to(tensor.device, tensor.dtype)

    return submit("allgather", [tensor], deliver, name=name, process_set=process_set, has_targets=False)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """As grouped_allgather(), without waiting and without a gradient. Returns a handle."""
    wire.require_rows("allgather", tensors)

    def deliver(gathered: Sequence[torch.Tensor], _: Response) -> list[torch.Tensor]:
        return _like(gathered, tensors)

    return submit("allgather", tensors, deliver, name=name, process_set=process_set, has_targets=False)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Joins the tensors of all members along the first dimension, in rank order.

    It has a gradient, as in Horovod: the mean over members of the gradients of this rank's rows.

    Args:
        tensor: at least one dimension; the first may differ from rank to rank.
        name: name by which ranks match operations, as in allreduce().
        process_set: the ranks that take part, as in allreduce().

    Returns: a new tensor, the same on every member.

    Raises:
        TypeError, ValueError: not a tensor, or one without dimensions; and as allreduce().
        HorovodInternalError: ranks differ in dtype or in another dimension; a rank has joined; the job has failed.
    """
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """As allgather(), for several tensors, which complete or fail together."""
    return list(_Gather.apply(name, process_set, *tensors))  # type: ignore[no-untyped-call]


def _like(values: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [value.to(t.device, t.dtype) for value, t in zip(values, tensors, strict=True)]


class _Gather(torch.autograd.Function):
    """A gather whose gradient is the mean of what members did with this one's rows; Horovod's tests pin the mean."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        wire.require_rows("allgather", tensors)

        def deliver(gathered: Sequence[torch.Tensor], response: Response) -> list[torch.Tensor]:
            own = process_set.rank() or 0
            rows = [[spec.shape[0] for spec in request.tensors] for request in response.requests.values()]
            ctx.starts = [
                list(itertools.accumulate(column, initial=0))[own] for column in zip(*rows, strict=True)
            ]
            return _like(gathered, tensors)

        ctx.process_set, ctx.rows = process_set, [tensor.shape[0] for tensor in tensors]
        handle = submit("allgather", tensors, deliver, name=name, process_set=process_set, has_targets=False)
        return tuple(synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        means = grouped_allreduce(gradients, op=reduce_ops.Average, process_set=ctx.process_set)
        own = [total.narrow(0, at, n) for total, at, n in zip(means, ctx.starts, ctx.rows, strict=True)]
        return (None, None, *own)
