"""What goes wrong in Horovod's words."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """An operation has failed on every rank that submitted it: they differ in what they gave, a rank has shut down, or
    the job has failed. The text says which.
    """


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed: `elastic.run` begins the function again, from the state as it is."""

    def __init__(self, skip_sync: bool) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync
