"""The store of a front end that is given none."""

from __future__ import annotations

from gradwire import kv, settings

__all__ = ["default_store", "open_default"]

_default: kv.KVStore | None = None


def default_store(front_end: str) -> kv.KVStore:
    """Returns the store by which this process has joined its job. Where there is none yet, or it has been closed, one
    is opened, as open_default() does: the same for all front ends of a process.

    Args:
        front_end: who asks, for the error, as "gradwire.torch".

    Raises: as open_default().
    """
    global _default
    if (store := kv.joined()) is not None:
        return store
    if _default is None or not _default.is_open:
        _default = open_default(front_end)
    return _default


def open_default(front_end: str) -> kv.KVStore:
    """Opens a store: inside a job `dist_sync` if it has servers, else `allreduce`; outside `local`.

    Args:
        front_end: who asks, for the error, as "gradwire.torch".

    Raises:
        ValueError: the environment tells of several workers and not of where they meet.
        As kv.create().
    """
    here = settings.read()
    if here.is_in_a_job:
        return kv.create("dist_sync" if here.num_servers else "allreduce")
    if here.num_workers > 1:
        raise ValueError(
            f"{front_end}: the environment says {here.num_workers} workers and not where they meet, so each would "
            "train alone; set MASTER_ADDR and MASTER_PORT on all of them (torchrun and `gradwire run` do), or under "
            "mpirun create the store first: gradwire.kv.create('dist_sync_mpi')"
        )
    return kv.create("local")
