"""The gradwire job that compressed sums travel in. A process has one; its workers are the ranks of one group."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
import torch.distributed as dist

from gradwire import kv
from gradwire.settings import definitions as settings
from gradwire.torch import process_group
from gradwire.torch.backend import policy
from gradwire.torch_backend import NAME


@dataclass
class _Joined:
    """The job that join() has joined last.

    Attributes:
        group: through which its workers found each other.
    """

    store: kv.KVStore
    group: weakref.ref[dist.ProcessGroup]


_joined: _Joined | None = None


def join(group: dist.ProcessGroup) -> bool:
    """Has the ranks of a group be the workers of this process's job. A collective of the group.

    Returns: False on all ranks, where any of them has joined a job of other ranks; nothing has changed then.

    Raises:
        gradwire.TimeoutError: a rank did not join within the group's timeout; names it.
    """
    global _joined
    _leave_job_of_destroyed_group()
    can = torch.tensor([int(_can_join(group))], device=_device_of(group))
    dist.all_reduce(can, dist.ReduceOp.MIN, group)
    if not can.item():
        return False
    if kv.joined() is None and settings.read().scheduler is None:
        _joined = _Joined(process_group.join(group, _timeout_of(group)), weakref.ref(group))
    return True


def _can_join(group: dist.ProcessGroup) -> bool:
    store = kv.joined()
    if store is None:
        here = settings.read()  # of a job of `gradwire run`, where its scheduler is given
        return here.scheduler is None or dist.get_process_group_ranks(group) == list(range(here.num_workers))
    return process_group.has_workers(store, group)


def _leave_job_of_destroyed_group() -> None:
    """After destroy_process_group() and a new init_process_group(), ranks may be others: they join each other anew."""
    global _joined
    if _joined is None or not _joined.store.is_open:
        return
    group = _joined.group()
    if group is None or _is_destroyed(group):
        _joined.store.close()
        _joined = None


def _is_destroyed(group: dist.ProcessGroup) -> bool:
    try:
        dist.get_process_group_ranks(group)
    except KeyError:
        return True
    return False


def _device_of(group: dist.ProcessGroup) -> torch.device:
    """A kind of device that the group's part of this backend serves."""
    served = [device for device, backend in policy.backends(group).items() if backend == NAME]
    return torch.device("cpu" if "cpu" in served else served[0])


def _timeout_of(group: dist.ProcessGroup) -> float:
    """Returns the timeout that the group was created with, in seconds."""
    backend = group._get_backend(_device_of(group))
    return backend.options._timeout.total_seconds()
