"""The rank's place in the job, and the end of the session, shared with Horovod's interface. Each framework has its
init().
"""

from __future__ import annotations

from typing import NoReturn

from gradwire.horovod import session
from gradwire.horovod.topology import Topology


def suspend() -> NoReturn:
    """Raises NotImplementedError: the workers of a job do not change."""
    raise NotImplementedError(_NO_RESUMING)


def resume(num_workers: int, num_servers: int, global_rank: int = -1) -> NoReturn:
    """Raises NotImplementedError: the workers of a job do not change."""
    raise NotImplementedError(_NO_RESUMING)


_NO_RESUMING = (
    "bps.suspend, bps.resume: a job keeps its workers and servers from its start to its end; save the parameters and "
    "the optimizer's state, and go on from them in a new job, with as many workers as you like"
)


def rank() -> int:
    """Returns this rank's number, from 0. Raises ValueError before init()."""
    return _place().rank


def size() -> int:
    """Returns the number of ranks of the job. Raises ValueError before init()."""
    return _place().size


def local_rank() -> int:
    """Returns this rank's number among those of its host, from 0. Raises ValueError before init()."""
    return _place().local_rank


def local_size() -> int:
    """Returns the number of ranks on this host. Raises ValueError before init()."""
    return _place().local_size


def require_init(verb: str) -> None:
    """Raises ValueError if init() was not called."""
    if not session.exists():
        raise ValueError(f"bps.{verb}: BytePS's interface is not initialised; call bps.init() first")


def _place() -> Topology:
    require_init("rank")
    return session.current().topology
