"""Which ranks share a host, in Horovod's words: local and cross ranks."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire import kv
from gradwire.settings import definitions as settings


@dataclass(frozen=True)
class Topology:
    """Where one rank is among all.

    Attributes:
        local_rank, local_size: among the ranks of its host.
        cross_rank, cross_size: among the ranks that have its local_rank on their hosts.
        is_homogeneous: whether all hosts have as many ranks.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    is_homogeneous: bool


def find(store: kv.KVStore) -> Topology:
    """Asks all ranks for their hosts. A collective."""
    own = settings.read().host_id or socket.gethostname()
    return of([blob.decode() for blob in store.engine.all_gather("horovod hosts", own.encode())], store.rank)


def of(hosts: Sequence[str], rank: int) -> Topology:
    """Returns the place of a rank, by all ranks' hosts."""
    local_ranks = [hosts[:other].count(hosts[other]) for other in range(len(hosts))]
    beside = [other for other, local in enumerate(local_ranks) if local == local_ranks[rank]]
    return Topology(
        rank=rank,
        size=len(hosts),
        local_rank=local_ranks[rank],
        local_size=hosts.count(hosts[rank]),
        cross_rank=beside.index(rank),
        cross_size=len(beside),
        is_homogeneous=len({hosts.count(host) for host in hosts}) == 1,
    )
