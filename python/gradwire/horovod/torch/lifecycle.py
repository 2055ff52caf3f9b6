"""init() for operations on PyTorch's tensors. Everything else is independent of the framework."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradwire.horovod import lifecycle
from gradwire.horovod.lifecycle import shutdown
from gradwire.horovod.process_sets import ProcessSet
from gradwire.horovod.torch import arrays

__all__ = ["init", "shutdown"]


def init(comm: Any = None, process_sets: Iterable[ProcessSet] | str | None = None) -> None:
    """Joins the job. A collective of all ranks.

    It uses the store that this process has created, else it opens one: `dist_sync` if the job has servers, `allreduce`
    if not. Does nothing if init() was called already, and shutdown() has not been called since.

    Args:
        comm: None, or a list of all ranks. Horovod also takes some of a launcher's ranks; here ranks are the
            launcher's. Default: None.
        process_sets: process sets to add. As with Horovod's "dynamic", add_process_set() may be called at any time.
            Default: None.

    Raises:
        ValueError: comm has other ranks; a process set that is not possible; a store without exact collectives; init()
            was called for another framework.
        gradwire.TimeoutError: not every rank joined in time; names the missing ones.
    """
    lifecycle.begin(arrays, comm, process_sets)
