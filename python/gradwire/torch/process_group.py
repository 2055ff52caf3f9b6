"""The store of a torch.distributed process group: its ranks, and nothing that a user has to set up besides.

Ranks find each other through the group's own store (gradwire/rendezvous.py), at a free port.
"""

from __future__ import annotations

import torch.distributed as dist

from gradwire import kv
from gradwire.settings import definitions as settings
from gradwire.stores import torch_group
from gradwire.stores.default_store import require_one_job
from gradwire.torch import session


def store_of(group: dist.ProcessGroup | None = None) -> kv.KVStore:
    """Returns the store whose workers are the group's ranks: the one by which this process has joined its job, or
    one that is made here. A collective of the group.

    Args:
        group: default: torch's default group.

    Raises:
        ValueError: torch.distributed has not been initialised, or the store at hand has other ranks.
        gradwire.TimeoutError: not every rank appeared in time; names those missing.
    """
    if not dist.is_initialized():
        raise ValueError(
            "gradwire.torch: torch.distributed is not initialised; call torch.distributed.init_process_group() first"
        )
    ranks = torch_group.current(group)
    if ranks is None:
        raise ValueError(
            f"gradwire.torch: the backend {dist.get_backend(group)!r} of this process group has no other ranks to "
            "exchange gradients with; expected 'gloo', 'nccl' or another that has"
        )
    here = settings.read()
    if kv.joined() is None and here.scheduler is None:
        return kv.join_group(ranks)
    if kv.joined() is None:  # else each rank of the group would wait for the job's others, who may never come
        require_one_job("gradwire.torch", here, ranks)
    store = session.default_store()
    if (store.rank, store.num_workers) != (ranks.rank, ranks.size):
        raise ValueError(
            f"gradwire.torch: this process is rank {store.rank} of {store.num_workers} in gradwire's job and rank "
            f"{ranks.rank} of {ranks.size} in the process group; give both the same ranks, or let gradwire join by the "
            "group: start the script with torchrun, and create no store"
        )
    return store
