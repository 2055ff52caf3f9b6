"""init() for operations on PyTorch's tensors; what follows it knows no framework."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradwire.horovod import lifecycle
from gradwire.horovod.lifecycle import shutdown
from gradwire.horovod.process_sets import ProcessSet
from gradwire.horovod.torch import arrays

__all__ = ["init", "shutdown"]


def init(comm: Any = None, process_sets: Iterable[ProcessSet] | str | None = None) -> None:
    """Joins the job, by the store that this process has created, or else by one that is opened. A collective of all
    ranks; no-op where it has been called, and shutdown() not since.

    Args:
        comm: Horovod's, of some of a launcher's ranks. Ranks are the launcher's here; None, or a list of all.
        process_sets: to add. Horovod's "dynamic" is always so: add_process_set() can be called any time.

    Raises:
        ValueError: comm is of other ranks; a process set that cannot be; a store without exact collectives; init() was
            called for another framework.
        gradwire.TimeoutError: not every rank appeared in time; names those missing.
    """
    lifecycle.begin(arrays, comm, process_sets)
