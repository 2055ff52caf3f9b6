"""init() for sums of PyTorch's tensors. Everything else is independent of the framework."""

from __future__ import annotations

from gradwire.horovod.torch import lifecycle
from gradwire.horovod.torch.lifecycle import shutdown

__all__ = ["init", "shutdown"]


def init(lazy: bool = True) -> None:
    """Joins the job. A collective of all ranks.

    It uses the store that this process has created, else it opens one: `dist_sync` if the job has servers, `allreduce`
    if not. Does nothing if init() was called already, and shutdown() has not been called since.

    Args:
        lazy: not used: BytePS may join in the background; here it returns when all ranks have joined. Default: True.

    Raises:
        ValueError: a store without exact collectives; init() was called for another framework.
        gradwire.TimeoutError: not every rank joined in time; names the missing ones.
    """
    lifecycle.init()
