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
        tensor: a dense NDArray of any shape, the same on all ranks; uint8, int8, int32, int64, bool or float16 to
            float64.
        average: Horovod's older form of op.
        name: name by which ranks match operations. Default: numbered in the order of calls without a name.
        priority: a higher one is started sooner by MXNet. Default: 0.
        prescale_factor: factor before the sum; for integers computed in float64. Default: 1.0.
        postscale_factor: factor after the sum; for integers computed in float64. Default: 1.0.
        process_set: the ranks that take part; only these call it. Default: all ranks.
        op: hvd.Average, Sum, Min, Max, Product or Adasum. The mean of integers is rounded towards zero. Sums of
            integers wrap, as does the sum of a mean of int64. Default: hvd.Average.

    Returns: a new NDArray, at once. Code that reads it waits. It gets a HorovodInternalError, which is an MXNetError
    too, if
        ranks differ in shape, dtype, op or factors, an operation of this name is in progress, or the job has failed.

    Raises: TypeError, ValueError: an argument is not valid; hvd.init() was not called.
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
    """As allreduce(), for several tensors, which complete or fail together."""
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
