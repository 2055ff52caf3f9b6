"""Horovod's errors."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """An operation has failed on every rank that submitted it.

    The ranks gave different arguments, a rank has shut down, or the job has failed. The text says which.
    """


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed: `elastic.run` calls the function again, with the current state."""

    def __init__(self, skip_sync: bool) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync
