"""allgather, alltoall and reducescatter: what joins, exchanges or shares out rows. Each call waits for all members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from gradwire.horovod import reduce_ops
from gradwire.horovod.errors import HorovodInternalError
from gradwire.horovod.mxnet.submission import ask, require_tensors
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.horovod.splits import received_rows, rows_for_each
from gradwire.horovod.submission import identity_of
from gradwire.mxnet.errors import KVStoreError
from gradwire.mxnet.no_autograd import no_autograd


def allgather(
    tensor: Any,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Joins the tensors of all members along the first dimension, in rank order. Has no gradient, and waits.

    Args:
        tensor: an NDArray, as in allreduce(), of which the first dimension may differ from rank to rank.
        name, process_set: as in allreduce().
        priority: Horovod's; a call that waits has none to overtake.

    Returns: the same on every member.

    Raises:
        TypeError, ValueError: what was given; hvd.init() was not called.
        HorovodInternalError: ranks differ in dtype or in another dimension, the same text on all; the job has failed.
    """
    return grouped_allgather([tensor], name, priority, process_set)[0]


@no_autograd
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """As allgather(), of several tensors, which are ready together or fail together."""
    return ask("allgather", tensors, name=name, process_set=process_set)[0]


@no_autograd
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives the i-th member splits[i] rows of this rank's tensor, and joins what all give this one, in rank order.
    Has no gradient, and waits.

    Args:
        tensor: ranks may differ in the first dimension, and in no other.
        splits: rows for each member: an NDArray or a list of whole numbers, (members,), that sum up to no more rows
            than there are. Default: as many for each.
        name, priority, process_set: as in allgather().

    Returns: the rows; with splits also how many of each member, int32 (members,).

    Raises: as allgather(); KVStoreError, a ValueError and an MXNetError: splits that do not fit the tensor.
    """
    identity_of("alltoall", process_set)
    require_tensors("alltoall", [tensor])
    counts = _rows_for_each(tensor.shape[0], splits, process_set)
    results, response = ask("alltoall", [tensor], name=name, process_set=process_set, splits=counts)
    if splits is None:
        return results[0]
    received = received_rows(response, process_set)
    return results[0], mx.nd.array(received, ctx=tensor.context, dtype="int32")


def _rows_for_each(rows: int, splits: Any, process_set: ProcessSet) -> tuple[int, ...]:
    given = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else splits
    try:
        return rows_for_each(rows, None if given is None else np.asarray(given), process_set)
    except ValueError as error:  # Horovod's is MXNet's own
        raise KVStoreError(str(error)) from None


def reducescatter(
    tensor: Any,
    op: int = reduce_ops.Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Sums the tensors of all members, and gives each its rows: near-equal parts, the earlier ones with a row more.
    Has no gradient, and waits.

    Args:
        tensor: the same shape on all ranks.
        op: hvd.Average, Sum, Min, Max or Product.
        name, priority, process_set: as in allgather().
        prescale_factor, postscale_factor: as in allreduce().

    Raises: as allgather(); HorovodInternalError: op is Adasum.
    """
    return grouped_reducescatter(
        [tensor], op, name, priority, process_set, prescale_factor, postscale_factor
    )[0]


@no_autograd
def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = reduce_ops.Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """As reducescatter(), of several tensors, which are ready together or fail together."""
    if op == reduce_ops.Adasum:
        raise HorovodInternalError("hvd.reducescatter: op=Adasum is of whole gradients; use Average or Sum")
    return ask(
        "reducescatter",
        tensors,
        name=name,
        process_set=process_set,
        op=reduce_ops.name_of(op),
        prescale=float(prescale_factor),
        postscale=float(postscale_factor),
    )[0]
