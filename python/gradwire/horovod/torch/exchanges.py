"""alltoall: every member gives each other member some of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradwire.horovod.negotiation import Response
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.horovod.splits import received_rows, rows_for_each
from gradwire.horovod.submission import identity_of, synchronize
from gradwire.horovod.torch import wire
from gradwire.horovod.torch.submission import submit

Splits = torch.Tensor | Sequence[int] | None


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As alltoall(), without waiting and without a gradient. Returns a handle for poll() and synchronize()."""

    def deliver(received: Sequence[torch.Tensor], response: Response) -> Any:
        rows = received[0].to(tensor.device, tensor.dtype)
        return (
            rows
            if splits is None
            else (rows, torch.tensor(received_rows(response, process_set), dtype=torch.int32, device="cpu"))
        )

    return _submit(tensor, _rows_of(tensor, splits, process_set), deliver, name, process_set)


def alltoall(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives the i-th member splits[i] rows of this rank's tensor, and joins what this rank gets, in rank order.

    It has a gradient: the gradients of rows are sent back to the ranks that the rows came from.

    Args:
        tensor: ranks may differ in the first dimension only.
        splits: whole numbers, (members,): rows for each member, in sum at most the rows of tensor. Default: equally
            many.
        name: name by which ranks match operations, as in allreduce().
        process_set: the ranks that take part, as in allreduce().

    Returns: the rows; with splits also how many came from each member, int32 (members,).

    Raises: as allreduce(); ValueError: splits that do not fit the tensor.
    """
    rows, received = _AllToAll.apply(tensor, _rows_of(tensor, splits, process_set), name, process_set)  # type: ignore[no-untyped-call]
    return rows if splits is None else (rows, received)


def _rows_of(tensor: torch.Tensor, splits: Splits, process_set: ProcessSet) -> tuple[int, ...]:
    """Returns how many rows each member gets.

    Raises: ValueError: that cannot be.
    """
    identity_of("alltoall", process_set)
    wire.require_rows("alltoall", [tensor])
    given = None if splits is None else torch.as_tensor(splits, device="cpu").numpy()
    return rows_for_each(tensor.shape[0], given, process_set)


def _submit(
    tensor: torch.Tensor, rows: tuple[int, ...], deliver: Any, name: str | None, process_set: ProcessSet
) -> int:
    return submit(
        "alltoall",
        [tensor],
        deliver,
        name=name,
        process_set=process_set,
        has_targets=False,
        splits=rows,
    )


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, rows: tuple[int, ...], name: str | None, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        def deliver(received: Sequence[torch.Tensor], response: Response) -> tuple[torch.Tensor, list[int]]:
            return received[0].to(tensor.device, tensor.dtype), received_rows(response, process_set)

        output, counts = synchronize(_submit(tensor, rows, deliver, name, process_set))
        ctx.given = tuple(counts), process_set, tensor.shape[0] - sum(rows)
        received = torch.tensor(counts, dtype=torch.int32, device="cpu")
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        counts, process_set, left = ctx.given
        back, _ = _AllToAll.apply(gradients[0], counts, None, process_set)  # type: ignore[no-untyped-call]
        kept = back.new_zeros((left, *back.shape[1:]))  # rows that went to nobody
        return torch.cat([back, kept]), None, None, None
