"""The store of a torch.distributed process group: its ranks, and nothing that a user has to set up besides.

Ranks find each other through the group's own store (gradwire/rendezvous.py), at a free port.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from gradwire import kv
from gradwire.settings import definitions as settings
from gradwire.stores import torch_group
from gradwire.stores.default_store import require_one_job
from gradwire.torch import session

# Of stores that were made here: which ranks of the default group are their workers, in this order.
_workers_of: weakref.WeakKeyDictionary[kv.KVStore, list[int]] = weakref.WeakKeyDictionary()


def join(group: dist.ProcessGroup | None, timeout: float | None = None) -> kv.KVStore:
    """Makes the store whose workers are a group's ranks. A collective of the group.

    Args:
        timeout: in seconds. Default: that of GRADWIRE_RENDEZVOUS_TIMEOUT.

    Raises:
        ValueError: the group's backend has no other ranks.
        gradwire.TimeoutError: not every rank appeared in time; names those missing.
    """
    ranks = _require_peers(group)
    store = kv.join_group(ranks, timeout=timeout)
    if not store.passthrough:  # which is alone, whoever is in the group
        _workers_of[store] = _ranks_of(group)
    return store


@contextlib.contextmanager
def naming_ranks(store: kv.KVStore) -> Iterator[None]:
    """Has an error that names workers say which ranks of torch.distributed they are, where the numbers differ."""
    try:
        yield
    except (ConnectionError, TimeoutError) as error:
        ranks = _workers_of.get(store, [])
        if ranks != list(range(len(ranks))):
            workers = ", ".join(map(str, range(len(ranks))))
            named = (
                f"workers {workers} of this job are ranks {', '.join(map(str, ranks))} of torch.distributed"
            )
            error.args = (f"{error}; {named}",)
        raise


def has_workers(store: kv.KVStore, group: dist.ProcessGroup | None) -> bool:
    """Whether a store's workers are a group's ranks. Those of a store that a script or a launcher has made are taken to
    be the first ranks of the default group.
    """
    workers = _workers_of.get(store, list(range(store.num_workers)))
    return workers == _ranks_of(group) and store.rank == dist.get_rank(group)


def _ranks_of(group: dist.ProcessGroup | None) -> list[int]:
    return list(range(dist.get_world_size())) if group is None else dist.get_process_group_ranks(group)


def store_of(group: dist.ProcessGroup | None = None, *, is_part: bool = False) -> kv.KVStore:
    """Returns the store whose workers are the group's ranks: the one by which this process has joined its job, or
    one that is made here. A collective of the group.

    Args:
        group: default: torch's default group.
        is_part: of the ranks, and the others are in groups of their own, which do the same: each is a job, whatever a
            launcher has prepared for all of them.

    Raises:
        ValueError: torch.distributed has not been initialised, or the store at hand has other ranks.
        gradwire.TimeoutError: not every rank appeared in time; names those missing.
    """
    if not dist.is_initialized():
        raise ValueError(
            "gradwire.torch: torch.distributed is not initialised; call torch.distributed.init_process_group() first"
        )
    here = settings.read()
    if kv.joined() is None and (is_part or here.scheduler is None):
        return join(group)
    ranks = _require_peers(group)
    if kv.joined() is None:  # else each rank of the group would wait for the job's others, who may never come
        require_one_job("gradwire.torch", here, ranks)
    store = session.default_store()
    if (store.rank, store.num_workers) != (ranks.rank, ranks.size):
        raise ValueError(
            f"gradwire.torch: this process is rank {store.rank} of {store.num_workers} in gradwire's job and rank "
            f"{ranks.rank} of {ranks.size} in the process group; give both the same ranks, or let gradwire join by the "
            "group: start the script with torchrun, and create no store"
        )
    if store in _workers_of and not has_workers(store, group):
        raise ValueError(
            f"gradwire.torch: this process has joined ranks {_workers_of[store]} of the default process group in a "
            f"gradwire job, and here is a group of ranks {_ranks_of(group)}; a process has one job: compress the sums "
            "of one group"
        )
    return store


def require_alike(
    who: str,
    groups: Sequence[dist.ProcessGroup],
    options: Mapping[str, Any],
    failure: Exception | None = None,
) -> None:
    """Compares the options of all ranks that the groups reach one after the other. A collective of them.

    Args:
        who: begins an error's text.
        options: by name; they are compared as repr() writes them.
        failure: what this rank cannot go on for. Default: nothing.

    Raises:
        ValueError: ranks differ, or another cannot go on.
        Exception: failure.
    """
    own = {name: repr(value) for name, value in options.items()}
    told = str(failure or "")
    for group in groups:
        everyone: list[Any] = [None] * group.size()
        dist.all_gather_object(everyone, (told, own), group=group)
        told = next((text for text, _ in everyone if text), "")
        ranks, first = dist.get_process_group_ranks(group), everyone[0][1]
        for rank, (_, there) in zip(ranks, everyone, strict=True):
            if not told and (name := next((name for name in own if there[name] != first[name]), None)):
                told = (
                    f"{who}: {name} is {first[name]} on rank {ranks[0]} and {there[name]} on rank {rank}; give the "
                    "same on all ranks"
                )
    if failure is not None:
        raise failure
    if told:
        raise ValueError(told)


def _require_peers(group: dist.ProcessGroup | None) -> torch_group.Group:
    ranks = torch_group.current(group)
    if ranks is None:
        raise ValueError(
            f"gradwire.torch: the backend {dist.get_backend(group)!r} of this process group has no other ranks to "
            "exchange gradients with; expected 'gloo', 'nccl' or another that has"
        )
    return ranks
