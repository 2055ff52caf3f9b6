"""init() for sums of PyTorch's tensors; what follows it knows no framework."""

from __future__ import annotations

from gradwire.horovod.torch import lifecycle


def init(lazy: bool = True) -> None:
    """Joins the job, by the store that this process has created, or else by one that is opened: `dist_sync` where the
    job has servers, `allreduce` where it has none. A collective of all ranks; no-op where it has been called, and
    shutdown() not since.

    Args:
        lazy: BytePS's, which may join in the background. This returns when all ranks are there, whatever it is.

    Raises:
        ValueError: a store without exact collectives; init() was called for another framework.
        gradwire.TimeoutError: not every rank appeared in time; names those missing.
    """
    lifecycle.init()


def shutdown() -> None:
    """Leaves: what is under way fails on all ranks.

    No-op where init() was not called. The process stays in its job, so that init() can follow.
    """
    lifecycle.shutdown()
