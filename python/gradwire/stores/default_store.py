"""The store of a front end that is given none."""

from __future__ import annotations

from gradwire import kv
from gradwire.settings import definitions as settings
from gradwire.settings import launch_environment
from gradwire.settings.definitions import Settings
from gradwire.stores import connect, torch_group
from gradwire.stores.torch_group import Group

__all__ = ["default_store", "open_default", "require_company", "require_one_job"]

_default: kv.KVStore | None = None
_INSTEAD = "or give the front end a store, which kv.create() of gradwire makes: 'local' trains alone"


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
    require_company(front_end, _default)
    return _default


def open_default(front_end: str) -> kv.KVStore:
    """Opens a store: inside a job `dist_sync` if it has servers, else `allreduce`; outside `local`. The ranks of
    torch's process group are a job, too.

    Args:
        front_end: who asks, for the error, as "gradwire.torch".

    Raises:
        ValueError: the environment tells of several workers and not of where they meet; or it has other ranks than
            torch's process group.
        As kv.create().
    """
    here = settings.read()
    if here.step_profile is not None:
        return kv.create("local")
    group = torch_group.current()
    if group is not None and group.size > 1:
        require_one_job(front_end, here, group)
    if here.scheduler is not None and here.num_servers:
        return kv.create("dist_sync")
    if here.is_in_a_job or (group is not None and group.size > 1):
        return kv.create("allreduce")
    if (told := launch_environment.several(here.num_workers)) is not None:
        raise ValueError(
            f"{front_end}: the environment says {told} and not where they meet, so each would train alone; start the "
            "script with `gradwire run` or torchrun, or call torch.distributed.init_process_group() before this, or "
            "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT on all ranks; under mpirun create the store first: "
            f"gradwire.kv.create('dist_sync_mpi'); {_INSTEAD}"
        )
    return kv.create("local")


def require_one_job(front_end: str, here: Settings, group: Group) -> None:
    """Raises ValueError where a process group has other ranks than the job that the environment describes."""
    if not here.is_in_a_job and here.num_workers == 1:
        return
    rank = group.rank if here.rank is None else here.rank
    if (rank, here.num_workers) != (group.rank, group.size):
        raise ValueError(
            f"{front_end}: this process is rank {rank} of {here.num_workers} in gradwire's job and rank {group.rank} "
            f"of {group.size} in torch's process group; give both the same ranks, or let gradwire join by the group: "
            "start the script with torchrun, and create no store"
        )


def require_company(front_end: str, store: kv.KVStore) -> None:
    """Raises ValueError where a store is a default one of this process alone, though torch's process group has others:
    the group was made after the store. Costs a microsecond."""
    if store is not _default or not connect.is_local(store.type):
        return
    group = torch_group.current()
    if group is not None and group.size > 1 and settings.read().step_profile is None:
        raise ValueError(
            f"{front_end}: torch's process group has {group.size} ranks and was made after this process had opened a "
            "store of its own, so that each rank would train alone; call torch.distributed.init_process_group() before "
            f"anything of gradwire's, {_INSTEAD}"
        )
