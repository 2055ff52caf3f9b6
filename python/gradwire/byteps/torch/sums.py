"""push_pull: sums and means of the tensors that ranks give under one name.

Ranks may submit names in any order and need not declare them: tensors are matched by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradwire.byteps.declarations import declare, place_of, store_priority
from gradwire.byteps.lifecycle import require_init
from gradwire.horovod import reduce_ops, submission
from gradwire.horovod.compression import codec_text, compressor_of
from gradwire.horovod.process_sets import global_process_set
from gradwire.horovod.torch import wire
from gradwire.horovod.torch.compression import Compression
from gradwire.horovod.torch.sums import allreduce, submit_sum


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Any = Compression.none,
) -> torch.Tensor:
    """Sums the ranks' tensors of one name. Differentiable: its gradient is the same sum of gradients, uncompressed.

    Args:
        tensor: any shape, the same on all ranks; uint8, int8 to int64, float16 to float64 or bfloat16, on any device.
        average: True: the mean; of integers it is rounded towards zero. False: the sum. Sums of integers wrap, as does
            the sum of a mean of int64. Default: True.
        name: name by which ranks match tensors. Required.
        version: not used: the n-th sum of a name has all ranks' n-th tensors.
        priority: not used: a sum that is awaited at once goes before all of priority 0.
        compression: bps.Compression.none or fp16, or a codec of gradwire: "2bit", bps.Compression.codec("int8").
            Residuals are kept by the name. Default: none.

    Returns: a new tensor, of tensor's dtype, shape and device.

    Raises:
        TypeError, ValueError: an argument is not valid; init() was not called; a sum of this name is in progress.
        RuntimeError: ranks differ in shape, dtype, average or codec (the same text on all); or the job has failed.
    """
    require_init("push_pull")
    if name is None:
        raise ValueError("bps.push_pull: name is missing, by which ranks mean the same tensor; give name=...")
    declare(name)
    return allreduce(tensor, name=name, compression=compression, op=_op(average))


def push_pull_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Any = Compression.none,
) -> torch.Tensor:
    """As push_pull(), into tensor itself, without a gradient. Returns tensor. name: as for push_pull_async()."""
    result: torch.Tensor = synchronize(
        push_pull_async_inplace(tensor, average, name, version, priority, compression)
    )
    return result


def push_pull_async(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Any = Compression.none,
) -> int:
    """As push_pull(), without waiting and without a gradient.

    Args:
        tensor, average, version, compression: as for push_pull(). Do not touch the tensor until synchronize().
        name: name by which ranks match tensors. None: numbered in the order of calls without a name. Default: None.
        priority: within +-32767; a higher one is sent sooner, and among equal ones the name that was declared first. It
            applies from the second sum of a name on, to float32 or compressed tensors, which are in progress at once
            and overtake each other. Others are sent together in the order of calls. Default: 0.

    Returns: a handle for poll() and synchronize().

    Raises: as push_pull().
    """
    return _submit("push_pull_async", tensor, average, name, priority, compression, in_place=False)


def push_pull_async_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Any = Compression.none,
) -> int:
    """As push_pull_async(), into tensor itself."""
    return _submit("push_pull_async_inplace", tensor, average, name, priority, compression, in_place=True)


def poll(handle: int) -> bool:
    """Returns True if synchronize() would return at once.

    Args:
        handle: what push_pull_async() or push_pull_async_inplace() returned.

    Raises: ValueError: there is no such handle, or it has been synchronized.
    """
    require_init("poll")
    return submission.poll(handle)


def synchronize(handle: int) -> Any:
    """Waits for a sum, and returns it.

    Args:
        handle: what push_pull_async() or push_pull_async_inplace() returned; each once.

    Raises:
        ValueError: there is no such handle, or it has been synchronized.
        RuntimeError: the sum has failed, on all ranks; says why.
    """
    require_init("synchronize")
    return submission.synchronize(handle)


def _submit(
    verb: str,
    tensor: torch.Tensor,
    average: bool,
    name: str | None,
    priority: int,
    compression: Any,
    *,
    in_place: bool,
) -> int:
    require_init(verb)
    wire.require_tensors("allreduce", [tensor])  # before fp16 looks at it
    compressor = compressor_of(compression)
    smaller, context = compressor.compress(tensor)

    @torch.no_grad()
    def result(totals: Sequence[torch.Tensor]) -> torch.Tensor:
        total: torch.Tensor = compressor.decompress(totals[0], context)
        return tensor.copy_(total) if in_place and total is not tensor else total

    return submit_sum(
        [smaller],
        result,
        name,
        _op(average),
        1.0,
        1.0,
        global_process_set,
        in_place=in_place,
        codec=codec_text(compressor),
        priority=store_priority(priority, place_of(name)),
    )


def _op(average: bool) -> int:
    return reduce_ops.Average if average else reduce_ops.Sum
