"""allreduce: sums, means, minima, ... of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradwire.horovod import reduce_ops
from gradwire.horovod.mxnet.submission import require_tensors, spec_of, start
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.horovod.sum_rules import require_sum
from gradwire.mxnet.no_autograd import no_autograd


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Combines the tensors of all members element by element. Has no gradient.

    Args:
        tensor: an NDArray, dense, of any shape, the same on all ranks; uint8, int8, int32, int64, bool or float16 to
            float64.
        average: Horovod's older form of op.
        name: by which ranks mean the same operation. Default: the n-th nameless one of the set.
        priority: the higher, the sooner MXNet begins it.
        prescale_factor, postscale_factor: before and after the sum; of integers by way of float64.
        process_set: whose members take part, and alone call it.
        op: hvd.Average (default), Sum, Min, Max, Product or Adasum. The mean of integers is cut off towards zero;
            sums of integers wrap, and so does the sum of a mean of int64.

    Returns: a new NDArray, at once. Who reads it waits, and gets a HorovodInternalError, which is an MXNetError too,
        where ranks differ in shape, dtype, op or factors, one of this name is under way, or the job has failed.

    Raises: TypeError, ValueError: what was given; hvd.init() was not called.
    """
    results = grouped_allreduce(
        [tensor], average, name, priority, prescale_factor, postscale_factor, process_set, op
    )
    return results[0]


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """As allreduce(), in place. Returns tensor."""
    results = grouped_allreduce_(
        [tensor], average, name, priority, prescale_factor, postscale_factor, process_set, op
    )
    return results[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """As allreduce(), of several tensors, which are ready together or fail together."""
    scales = (prescale_factor, postscale_factor)
    return start_sum(
        tensors, name, reduce_ops.chosen(op, average), scales, process_set, in_place=False, priority=priority
    )


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """As grouped_allreduce(), in place. Returns the tensors."""
    scales = (prescale_factor, postscale_factor)
    return start_sum(
        tensors, name, reduce_ops.chosen(op, average), scales, process_set, in_place=True, priority=priority
    )


@no_autograd
def start_sum(
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    scales: tuple[float, float],
    process_set: ProcessSet,
    *,
    in_place: bool,
    priority: int,
    codec: str = "",
) -> list[Any]:
    """Starts a sum, compressed where there is a codec (compression.codec_text()). Returns as submission.start().

    Args:
        scales: prescale_factor and postscale_factor.
        priority: the higher, the sooner MXNet begins it; as Tensors.priority on the wire, too.

    Raises: as allreduce().
    """
    require_tensors("allreduce", tensors)
    require_sum([spec_of(tensor) for tensor in tensors], name, op, process_set, codec)
    return start(
        "allreduce",
        tensors,
        name=name,
        process_set=process_set,
        in_place=in_place,
        priority=priority,
        op=reduce_ops.name_of(op),
        prescale=float(scales[0]),
        postscale=float(scales[1]),
        codec=codec,
    )
