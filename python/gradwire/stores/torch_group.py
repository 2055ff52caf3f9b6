"""torch's stores, where ranks have met already: that of a process group which the script has made, and torchrun's.

torch is looked at only where the script has imported it or torchrun has started this process.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gradwire import _core

__all__ = ["Group", "current", "of_torchrun"]

_WITHOUT_PEERS = "fake"  # torch's backend for tests: it says that there are others, and there are none


@dataclass(frozen=True)
class Group:
    """Ranks that have met through one of torch's stores.

    Attributes:
        rank, size: of this process among them, and how many they are.
        store: torch's, whose set(), get() and check() are used; None: the backend has none (mpi).
        name: tells the group's keys in the store from those of others.
        host, port: at which this process reaches the store; None: it is no TCPStore.
        ranks: of torch's default group that they are; empty: as this process counts them.
    """

    rank: int
    size: int
    store: Any
    name: str
    host: str | None = None
    port: int | None = None
    ranks: tuple[int, ...] = ()

    @property
    def world_rank(self) -> int:
        """This process's rank in torch's default group."""
        return self.ranks[self.rank] if self.ranks else self.rank


def current(group: Any = None, ranks: Sequence[int] | None = None) -> Group | None:
    """Returns a process group of torch's as it is here; None where none has been made.

    Args:
        group: default: torch's default group.
        ranks: of the group, as the default group counts them, with this one: they alone are meant. Default: all.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    if dist.get_backend(group) == _WITHOUT_PEERS:
        return None
    from torch.distributed import distributed_c10d as c10d

    if ranks is None:
        ranks = range(dist.get_world_size()) if group is None else dist.get_process_group_ranks(group)
    store = c10d._get_default_store()
    has_store = type(store) is not dist.Store  # a placeholder
    digest = hashlib.sha256(repr(list(ranks)).encode()).hexdigest()[:16]
    at = _tcp_store_of(store)
    return Group(
        rank=list(ranks).index(dist.get_rank()),
        size=len(ranks),
        store=store if has_store else None,
        name=f"gradwire/{digest}",
        host=at and at.host,
        port=at and at.port,
        ranks=tuple(ranks),
    )


def of_torchrun(host: str, port: int, rank: int, size: int, seconds: float) -> Group | None:
    """Joins the store that torchrun serves to the processes which it has started; None: torch is not installed here.

    Args:
        host, port: MASTER_ADDR and MASTER_PORT.
        seconds: for which it is tried.

    Raises: gradwire.TimeoutError: it cannot be reached.
    """
    try:
        import torch.distributed as dist
    except ImportError:
        return None
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host, port, is_master=False, timeout=timedelta(seconds=seconds), wait_for_workers=False
        )
    except RuntimeError as error:
        raise _core.TimeoutError(
            f"rendezvous: torchrun's store at {host}:{port} (MASTER_ADDR and MASTER_PORT) cannot be reached: {error}"
        ) from None
    return Group(rank, size, store, "gradwire", host, port)


def _tcp_store_of(store: Any) -> Any:
    """Returns the TCPStore below any prefixes; None: it is another kind."""
    dist = sys.modules["torch.distributed"]
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store if isinstance(store, dist.TCPStore) else None
