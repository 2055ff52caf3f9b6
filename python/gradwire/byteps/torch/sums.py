"""push_pull: sums and means of all ranks' tensors of one name.

Ranks may ask for names in any order, and need not have declared them: those of a name meet.
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
    """Sums the ranks' tensors of one name; differentiable: its gradient is the same, of the gradients, and exact.

    Args:
        tensor: any shape, the same on all ranks; uint8, int8 to int64, float16 to float64 or bfloat16, on any device.
        average: the mean; of integers it is cut off towards zero. False: the sum. Sums of integers wrap, and so does
            the sum of a mean of int64.
        name: by which ranks mean the same tensor.
        version: BytePS's; the n-th sum of a name is of all ranks' n-th here.
        priority: BytePS's; a sum that is waited for at once goes before all of priority 0.
        compression: bps.Compression.none or fp16, or a codec of gradwire's: "2bit", bps.Compression.codec("int8").
            A codec keeps by the name what it has not sent yet.

    Returns: a new tensor, of tensor's dtype, shape and device.

    Raises:
        TypeError, ValueError: what was given; init() was not called; a sum of this name is under way.
        RuntimeError: ranks differ in shape, dtype, average or codec, the same text on all; or the job has failed.
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
    """As push_pull(), into tensor itself, which it returns, and without a gradient. name: as for push_pull_async()."""
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
        tensor, average, version, compression: as for push_pull(). The tensor must be left alone until synchronize().
        name: None: the next of the names that this rank has not given.
        priority: the higher, the sooner, within +-32767; of equal ones what was declared first. Of a name's sums from
            the second on, of float32 or compressed by a codec, which are under way at once and overtake each other.
            Others travel together as they come, one batch after the other.

    Returns: a handle, for poll() and synchronize().

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
    """Tells whether synchronize() would return at once.

    Args:
        handle: of push_pull_async() or push_pull_async_inplace().

    Raises: ValueError: there is no such handle, or it has been synchronized.
    """
    require_init("poll")
    return submission.poll(handle)


def synchronize(handle: int) -> Any:
    """Waits for a sum. Returns it.

    Args:
        handle: as for poll(); each once.

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
