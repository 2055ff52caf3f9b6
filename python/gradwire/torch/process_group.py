"""The store of a torch.distributed process group: its ranks, and nothing that a user has to set up besides.

Ranks find each other through the group's own store (gradwire/rendezvous.py), at a free port.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
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
    return _join(_require_peers(group), _ranks_of(group), timeout)


def _join(peers: torch_group.Group, ranks: list[int], timeout: float | None = None) -> kv.KVStore:
    store = kv.join_group(peers, timeout=timeout)
    if not store.passthrough:  # which is alone, whoever is in the group
        _workers_of[store] = ranks
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
    return _has_ranks(store, _ranks_of(group))


def workers_of(store: kv.KVStore) -> list[int]:
    """Returns which ranks of the default group are a store's workers, in their order; none if a script or a launcher
    has made the store.
    """
    return _workers_of.get(store, [])


def _has_ranks(store: kv.KVStore, ranks: list[int]) -> bool:
    workers = _workers_of.get(store, list(range(store.num_workers)))
    return workers == ranks and ranks[store.rank] == dist.get_rank()


def _ranks_of(group: dist.ProcessGroup | None) -> list[int]:
    return list(range(dist.get_world_size())) if group is None else dist.get_process_group_ranks(group)


def store_of(group: dist.ProcessGroup | None = None, *, ranks: Sequence[int] | None = None) -> kv.KVStore:
    """Returns the store whose workers are the group's ranks: the one by which this process has joined its job, or
    one that is made here. A collective of the group.

    Args:
        group: default: torch's default group.
        ranks: of the group, as the default group counts them, with this one: the store is theirs, and the group's other
            ranks do the same with theirs. Each part is a job, whatever a launcher has prepared for all of them.
            Default: all.

    Raises:
        ValueError: torch.distributed has not been initialised; the store at hand has other ranks; or GRADWIRE_MASTER
            is given, and ranks that are a part.
        gradwire.TimeoutError: not every rank appeared in time; names those missing.
    """
    if not dist.is_initialized():
        raise ValueError(
            "gradwire.torch: torch.distributed is not initialised; call torch.distributed.init_process_group() first"
        )
    here = settings.read()
    workers = _ranks_of(group) if ranks is None else list(ranks)
    peers = _require_peers(group, workers)
    if kv.joined() is None:  # else each rank of the group would wait for the job's others, who may never come
        is_part = len(workers) < dist.get_world_size(group)
        if is_part and here.master is not None and settings.is_given("master"):
            raise ValueError(
                f"gradwire.torch: GRADWIRE_MASTER={here.master} was given, and the ranks of the process group join "
                "several gradwire jobs, which cannot meet at one address; leave it out, and --placement auto, "
                "which gives it, so that they meet through torch's store"
            )
        if here.scheduler is None or is_part:
            return _join(peers, workers)
        require_one_job("gradwire.torch", here, peers)
    store = session.default_store()
    if (store.rank, store.num_workers) != (peers.rank, peers.size):
        raise ValueError(
            f"gradwire.torch: this process is rank {store.rank} of {store.num_workers} in gradwire's job and rank "
            f"{peers.rank} of {peers.size} in the process group; give both the same ranks, or let gradwire join by the "
            "group: start the script with torchrun, and create no store"
        )
    if store in _workers_of and not _has_ranks(store, workers):
        raise ValueError(
            f"gradwire.torch: this process has joined ranks {_workers_of[store]} of the default process group in a "
            f"gradwire job, and here is a group of ranks {workers}; a process has one job: compress the sums "
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


def any_of(group: dist.ProcessGroup, own: bool) -> bool:
    """Whether it is so on any rank of a group. A collective of it."""
    device = torch.device("cpu" if "cpu" in dist.get_backend_config(group) else "cuda")
    found = torch.tensor([int(own)], device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX, group)
    return bool(found.item())


def _require_peers(group: dist.ProcessGroup | None, ranks: Sequence[int] | None = None) -> torch_group.Group:
    peers = torch_group.current(group, ranks)
    if peers is None:
        raise ValueError(
            f"gradwire.torch: the backend {dist.get_backend(group)!r} of this process group has no other ranks to "
            "exchange gradients with; expected 'gloo', 'nccl' or another that has"
        )
    return peers
