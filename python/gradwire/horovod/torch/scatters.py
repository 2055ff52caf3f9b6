"""reducescatter: sums whose rows are divided among the members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradwire.horovod import reduce_ops
from gradwire.horovod.compression import codec_text, compressor_of
from gradwire.horovod.errors import HorovodInternalError
from gradwire.horovod.negotiation import Response
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.horovod.submission import synchronize
from gradwire.horovod.torch import wire
from gradwire.horovod.torch.compression import Compression
from gradwire.horovod.torch.gathers import grouped_allgather
from gradwire.horovod.torch.submission import submit


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = reduce_ops.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """As reducescatter(), without waiting and without a gradient. Returns a handle for poll() and synchronize()."""

    def deliver(shares: Sequence[torch.Tensor], _: Response) -> torch.Tensor:
        return shares[0].to(tensor.device, tensor.dtype)

    return _submit([tensor], deliver, name, op, process_set, prescale_factor, postscale_factor)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = reduce_ops.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """As grouped_reducescatter(), without waiting and without a gradient. Returns a handle."""

    def deliver(shares: Sequence[torch.Tensor], _: Response) -> list[torch.Tensor]:
        return [share.to(t.device, t.dtype) for share, t in zip(shares, tensors, strict=True)]

    return _submit(tensors, deliver, name, op, process_set, prescale_factor, postscale_factor)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = reduce_ops.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Sums the tensors of all members, and gives each its rows: near-equal parts, the first ones with one row more.

    Sums and means have a gradient.

    Args:
        tensor: at least one dimension; the same shape on all ranks.
        compression: hvd.Compression.none or fp16. Default: none.
        op: hvd.Average, Sum, Min, Max or Product. Default: hvd.Average.
        name: name by which ranks match operations, as in allreduce().
        process_set: the ranks that take part, as in allreduce().
        prescale_factor: factor before the sum. Default: 1.0.
        postscale_factor: factor after the sum. Default: 1.0.

    Returns: a new tensor with this rank's rows.

    Raises:
        TypeError, ValueError: not a tensor, or one without dimensions; a codec; and as allreduce().
        HorovodInternalError: op is Adasum; and as allreduce().
    """
    return grouped_reducescatter(
        [tensor], name, compression, op, process_set, prescale_factor, postscale_factor
    )[0]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = reduce_ops.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """As reducescatter(), for several tensors, which complete or fail together."""
    wire.require_rows("reducescatter", tensors)
    compressor = compressor_of(compression)
    if codec_text(compressor):
        raise ValueError(
            "hvd.reducescatter: a codec acts on allreduce() alone; give Compression.none or fp16"
        )
    changed = [compressor.compress(tensor) for tensor in tensors]
    scales = (prescale_factor, postscale_factor)
    shares = _ReduceScatter.apply(name, op, process_set, *scales, *[tensor for tensor, _ in changed])  # type: ignore[no-untyped-call]
    return [compressor.decompress(share, ctx) for share, (_, ctx) in zip(shares, changed, strict=True)]


def _submit(
    tensors: Sequence[torch.Tensor],
    deliver: Any,
    name: str | None,
    op: int,
    process_set: ProcessSet,
    prescale_factor: float,
    postscale_factor: float,
) -> int:
    if op == reduce_ops.Adasum:
        raise HorovodInternalError("hvd.reducescatter: op=Adasum is of whole gradients; use Average or Sum")
    wire.require_rows("reducescatter", tensors)
    return submit(
        "reducescatter",
        tensors,
        deliver,
        name=name,
        process_set=process_set,
        has_targets=False,
        op=reduce_ops.name_of(op),
        prescale=float(prescale_factor),
        postscale=float(postscale_factor),
    )


class _ReduceScatter(torch.autograd.Function):
    """Rows of a sum, whose gradient is that of the whole: the members' rows again, with the sum's factors."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale: float,
        postscale: float,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        def deliver(shares: Sequence[torch.Tensor], _: Response) -> tuple[torch.Tensor, ...]:
            return tuple(share.to(t.device, t.dtype) for share, t in zip(shares, tensors, strict=True))

        ctx.given = op, process_set, prescale * postscale
        result: tuple[torch.Tensor, ...] = synchronize(
            _submit(tensors, deliver, name, op, process_set, prescale, postscale)
        )
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        op, process_set, factor = ctx.given
        if op not in (reduce_ops.Average, reduce_ops.Sum):
            raise NotImplementedError(
                f"hvd.reducescatter: op={reduce_ops.name_of(op)} has no gradient here; use Average or Sum"
            )
        # Horovod's gradients here are the derivative times the number of members; its tests pin that.
        if op == reduce_ops.Sum:
            factor *= len(process_set.members())
        whole = grouped_allgather(gradients, process_set=process_set)
        return (None,) * 5 + tuple(gradient * factor for gradient in whole)
