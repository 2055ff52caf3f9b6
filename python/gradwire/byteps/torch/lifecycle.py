"""init() to shutdown(), and which rank this is. One session a process, which Horovod's interface shares."""

from __future__ import annotations

from gradwire.horovod import session
from gradwire.horovod.topology import Topology
from gradwire.horovod.torch import lifecycle


def init(lazy: bool = True) -> None:
    """Joins the job, by the store that this process has created, or else by one that is opened: `dist_sync` where the
    job has servers, `allreduce` where it has none. A collective of all ranks; no-op where it has been called, and
    shutdown() not since.

    Args:
        lazy: BytePS's, which may join in the background. This returns when all ranks are there, whatever it is.

    Raises:
        ValueError: a store without exact collectives.
        gradwire.TimeoutError: not every rank appeared in time; names those missing.
    """
    lifecycle.init()


def shutdown() -> None:
    """Leaves: what is under way fails on all ranks. The process stays in its job, so that init() can follow.

    No-op where init() was not called.
    """
    lifecycle.shutdown()


def rank() -> int:
    """This rank's number, from 0. Raises ValueError before init(), as all that follow do."""
    return _place().rank


def size() -> int:
    """How many ranks the job has."""
    return _place().size


def local_rank() -> int:
    """This rank's number among those of its host."""
    return _place().local_rank


def local_size() -> int:
    """How many ranks its host has."""
    return _place().local_size


def require_init(verb: str) -> None:
    """Raises ValueError where init() was not called."""
    if not session.exists():
        raise ValueError(f"bps.{verb}: BytePS's interface is not initialised; call bps.init() first")


def _place() -> Topology:
    require_init("rank")
    return session.current().topology
