"""Which rank this is, and the end of the session, which Horovod's interface shares. init() is each framework's own."""

from __future__ import annotations

from typing import NoReturn

from gradwire.horovod import session
from gradwire.horovod.topology import Topology


def suspend() -> NoReturn:
    """Raises NotImplementedError: a job keeps its workers."""
    raise NotImplementedError(_NO_RESUMING)


def resume(num_workers: int, num_servers: int, global_rank: int = -1) -> NoReturn:
    """Raises NotImplementedError: a job keeps its workers."""
    raise NotImplementedError(_NO_RESUMING)


_NO_RESUMING = (
    "bps.suspend, bps.resume: a job keeps its workers and servers from its start to its end; save the parameters and "
    "the optimizer's state, and go on from them in a new job, with as many workers as you like"
)


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
