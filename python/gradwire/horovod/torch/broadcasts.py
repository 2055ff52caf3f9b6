"""broadcast: every member gets one rank's tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradwire.horovod import reduce_ops, session
from gradwire.horovod.negotiation import Response
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.horovod.submission import synchronize
from gradwire.horovod.torch import wire
from gradwire.horovod.torch.submission import submit
from gradwire.horovod.torch.sums import allreduce


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As broadcast(), without waiting and without a gradient. Returns a handle for poll() and synchronize()."""

    def deliver(values: Sequence[torch.Tensor], _: Response) -> torch.Tensor:
        return values[0].to(tensor.device, tensor.dtype)

    return submit("broadcast", [tensor], deliver, name=name, process_set=process_set, root=int(root_rank))


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As broadcast_(), without waiting. Do not touch the tensor until synchronize()."""

    def deliver(values: Sequence[torch.Tensor], _: Response) -> torch.Tensor:
        return wire.delivered(values[0], tensor)

    return submit(
        "broadcast",
        [tensor],
        deliver,
        name=name,
        process_set=process_set,
        in_place=True,
        root=int(root_rank),
    )


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As broadcast(), in place. Returns tensor."""
    result: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Gives every member one rank's tensor.

    It has a gradient, as in Horovod: on the root the mean of all members' gradients, elsewhere zeros.

    Args:
        tensor: the same shape and dtype on all ranks.
        root_rank: rank of the job whose tensor all get; not a place in the process set.
        name: name by which ranks match operations, as in allreduce().
        process_set: the ranks that take part, as in allreduce().

    Returns: a new tensor.

    Raises: as allreduce(); also if ranks differ in root_rank, or the root is not a member.
    """
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
    return result


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.given = root_rank, process_set
        result: torch.Tensor = synchronize(broadcast_async(tensor, root_rank, name, process_set))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        root_rank, process_set = ctx.given
        mean = allreduce(gradients[0], op=reduce_ops.Average, process_set=process_set)
        is_root = session.current().store.rank == root_rank
        return (mean if is_root else torch.zeros_like(mean)), None, None, None
