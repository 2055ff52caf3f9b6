"""allreduce: sums, means, minima, ... of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradwire.horovod import reduce_ops
from gradwire.horovod.compression import codec_text, compressor_of
from gradwire.horovod.negotiation import Response
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.horovod.submission import synchronize
from gradwire.horovod.sum_rules import require_sum
from gradwire.horovod.torch import arrays, wire
from gradwire.horovod.torch.compression import Compression
from gradwire.horovod.torch.submission import submit


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As allreduce(), without waiting and without a gradient. Returns a handle for poll() and synchronize()."""
    chosen = reduce_ops.chosen(op, average)
    return submit_sum(
        [tensor], _only, name, chosen, prescale_factor, postscale_factor, process_set, in_place=False
    )


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As allreduce_(), without waiting. Do not touch the tensor until synchronize()."""
    chosen = reduce_ops.chosen(op, average)
    return submit_sum(
        [tensor], _only, name, chosen, prescale_factor, postscale_factor, process_set, in_place=True
    )


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As allreduce(), in place. Returns tensor."""
    handle = allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    result: torch.Tensor = synchronize(handle)
    return result


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Combines the tensors of all members element by element.

    Sums and means have a gradient: the same operation on the gradients.

    Args:
        tensor: any shape, the same on all ranks; uint8, int8 to int64, float16 to float64 or bfloat16, on any device.
        average: Horovod's older form of op.
        name: name by which ranks match operations. Default: numbered in the order of calls without a name.
        compression: hvd.Compression.none, fp16, or a codec of gradwire, which needs a name: residuals are kept by it.
            Default: none.
        op: hvd.Average, Sum, Min, Max, Product or Adasum. The mean of integers is rounded towards zero. Sums of
            integers wrap, as does the sum of a mean of int64. Default: hvd.Average.
        prescale_factor: factor before the sum; for integers computed in float64. Default: 1.0.
        postscale_factor: factor after the sum; for integers computed in float64. Default: 1.0.
        process_set: the ranks that take part; only these call it. Default: all ranks.

    Returns: a new tensor, of tensor's dtype, shape and device.

    Raises:
        TypeError, ValueError: an argument is not valid; an operation of this name is in progress; hvd.init() was not
            called.
        HorovodInternalError: ranks differ in shape, dtype, op or factors (the same text on all); or the job has failed.
    """
    results = grouped_allreduce(
        [tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set
    )
    return results[0]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As grouped_allreduce(), without waiting and without a gradient. Returns a handle."""
    chosen = reduce_ops.chosen(op, average)
    return submit_sum(
        tensors, list, name, chosen, prescale_factor, postscale_factor, process_set, in_place=False
    )


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As grouped_allreduce_(), without waiting. Returns a handle."""
    chosen = reduce_ops.chosen(op, average)
    return submit_sum(
        tensors, list, name, chosen, prescale_factor, postscale_factor, process_set, in_place=True
    )


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As grouped_allreduce(), in place. Returns the tensors."""
    handle = grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    results: list[torch.Tensor] = synchronize(handle)
    return results


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As allreduce(), for several tensors, which complete or fail together."""
    wire.require_tensors("allreduce", tensors)  # before fp16 looks at them
    compressor = compressor_of(compression)
    changed = [compressor.compress(tensor) for tensor in tensors]
    chosen = reduce_ops.chosen(op, average)
    scales = (prescale_factor, postscale_factor)
    summed = _Sum.apply(  # type: ignore[no-untyped-call]
        name, chosen, *scales, process_set, codec_text(compressor), *[tensor for tensor, _ in changed]
    )
    return [compressor.decompress(total, ctx) for total, (_, ctx) in zip(summed, changed, strict=True)]


def submit_sum(
    tensors: Sequence[torch.Tensor],
    shape: Callable[[Sequence[torch.Tensor]], Any],
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    *,
    in_place: bool,
    codec: str = "",
    priority: int = 0,
    is_unused: bool = False,
) -> int:
    """Submits a sum, compressed where there is a codec (compression.codec_text()).

    Args:
        shape: makes the result of the summed tensors.
        priority: as Tensors.priority.
        is_unused: as Request.is_unused; the result is None if other ranks gather rows.

    Raises: as allreduce().
    """
    wire.require_tensors("allreduce", tensors)
    require_sum([arrays.spec_of(tensor) for tensor in tensors], name, op, process_set, codec)

    def deliver(totals: Sequence[torch.Tensor], _: Response) -> Any:
        if in_place:
            return shape([wire.delivered(total, t) for total, t in zip(totals, tensors, strict=True)])
        return shape([total.to(t.device, t.dtype) for total, t in zip(totals, tensors, strict=True)])

    return submit(
        "allreduce",
        tensors,
        deliver,
        name=name,
        process_set=process_set,
        in_place=in_place,
        priority=priority,
        op=reduce_ops.name_of(op),
        prescale=float(prescale_factor),
        postscale=float(postscale_factor),
        codec=codec,
        is_unused=is_unused,
    )


def _only(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0]


class _Sum(torch.autograd.Function):
    """A sum whose gradient is the same sum, of the gradients; exact, whatever the codec."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        codec: str,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.given = op, prescale, postscale, process_set
        handle = submit_sum(
            tensors, tuple, name, op, prescale, postscale, process_set, in_place=False, codec=codec
        )
        result: tuple[torch.Tensor, ...] = synchronize(handle)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        op, prescale, postscale, process_set = ctx.given
        if op not in (reduce_ops.Average, reduce_ops.Sum):
            raise NotImplementedError(
                f"hvd.allreduce: op={reduce_ops.name_of(op)} has no gradient here; use Average or Sum where one is "
                "needed"
            )
        summed = grouped_allreduce(
            gradients,
            op=op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set=process_set,
        )
        return (None,) * 6 + tuple(summed)
