"""The store of a torch.distributed process group: its ranks, and nothing that a user has to set up besides.

Rank 0 of the group picks a free port, which differs from that of torch's own TCPStore, and tells the others
through the group.
"""

from __future__ import annotations

import socket
import urllib.parse

import torch
import torch.distributed as dist

from gradwire import endpoints, kv, settings
from gradwire.torch import session

_ADDRESS_BYTES = 256


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
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if kv.joined() is None and settings.read().scheduler is None:
        return kv.join(_agree(group, rank), rank, size)
    store = session.default_store()
    if (store.rank, store.num_workers) != (rank, size):
        raise ValueError(
            f"gradwire.torch: this process is rank {store.rank} of {store.num_workers} in gradwire's job and rank "
            f"{rank} of {size} in the process group; give both the same ranks, or let gradwire join by the group: "
            "start the script with torchrun, and create no store"
        )
    return store


def _agree(group: dist.ProcessGroup | None, rank: int) -> str:
    """Returns what rank 0 found, on all ranks."""
    on_gpu = dist.get_backend(group) == dist.Backend.NCCL
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    octets = torch.zeros(_ADDRESS_BYTES, dtype=torch.uint8)
    if rank == 0:
        text = endpoints.written(_own_host(group), _free_port()).encode()
        octets[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    octets = octets.to(device)
    root = 0 if group is None else dist.get_global_rank(group, 0)
    dist.broadcast(octets, root, group=group)
    return bytes(octets.cpu().tolist()).rstrip(b"\0").decode()


def _own_host(group: dist.ProcessGroup | None) -> str:
    """A name or address of this host that the other ranks can reach."""
    here = settings.read()
    if here.bind_host is not None:
        return here.bind_host
    if here.master is not None and dist.get_rank() == 0:  # torch's MASTER_ADDR is the host of global rank 0
        return urllib.parse.urlsplit(here.master).hostname or "127.0.0.1"
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"  # a host that nobody knows by its name: its ranks are all here
    return name


def _free_port() -> int:
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
