"""DistributedDataParallel on Gloo with PyTorch's own hooks: what gradwire is compared with, in the same loop.

gradwire's store brings the workers together and broadcasts the first weights; gradients go through DDP alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from gradwire.launch.remote.ssh import own_address
from gradwire.launch.rendezvous import free_port
from gradwire.settings import definitions as settings
from gradwire.terminal.machine import interfaces
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

_POWER_SGD_RANK = 4
_DENSE_SHARE = 10  # PyTorch's advice: PowerSGD begins after a tenth of the steps
_FEWEST_DENSE = 2
_ONE_BUCKET_MB = 10_000  # with several, PyTorch's PowerSGD waits for ever on Gloo
_LOOPBACK = "lo"


def join(store: Any) -> str:
    """Makes torch's default process group of a store's workers; returns the network interface that it uses.

    Collective: rank 0's address, and a port that is free there, come to the others through the store.
    """
    scheduler = settings.read().scheduler
    address = own_address(urlsplit(scheduler).hostname or "") if scheduler else "127.0.0.1"
    interface = next((name for name, own in interfaces().items() if address in own), None)
    if interface is None:
        raise ValueError(f"train: --ddp-hook: no network interface here has the IPv4 address {address}")
    os.environ["GLOO_SOCKET_IFNAME"] = (
        interface  # or Gloo would take the one that the host's name resolves to
    )
    offers = store.engine.all_gather("ddp", json.dumps([address, free_port(address)]).encode())
    host, port = json.loads(offers[0])
    meeting = dist.TCPStore(host, port, store.num_workers, is_master=store.rank == 0)
    dist.init_process_group(
        "gloo", store=meeting, rank=store.rank, world_size=store.num_workers, timeout=timedelta(minutes=2)
    )
    return interface


def wrap(model: torch.nn.Module, hook: str, steps: int) -> DistributedDataParallel:
    """Wraps a model that is the same on all ranks.

    Buffers (running means of norms) stay each rank's own, as with gradwire: gradients are what is compared.

    Args:
        hook: "none", "fp16" or "powersgd".
        steps: of the whole run, of which PowerSGD's first part is dense.
    """
    options: dict[str, Any] = {"bucket_cap_mb": _ONE_BUCKET_MB} if hook == "powersgd" else {}
    wrapped = DistributedDataParallel(
        model, forward_sync_buffers=False, gradient_as_bucket_view=True, **options
    )
    if hook == "fp16":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        dense = max(_FEWEST_DENSE, steps // _DENSE_SHARE)
        state = powerSGD_hook.PowerSGDState(None, _POWER_SGD_RANK, start_powerSGD_iter=dense)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return wrapped


def link_bytes(interface: str) -> Callable[[], int] | None:
    """Returns what counts the bytes sent and received on an interface, headers included: Gloo does not count its own.
    None on loopback, where everybody's are.
    """
    if interface == _LOOPBACK:
        return None

    def count() -> int:
        for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
            name, _, numbers = line.partition(":")
            if name.strip() == interface:
                fields = numbers.split()
                return int(fields[0]) + int(fields[8])  # received, sent
        raise OSError(f"train: /proc/net/dev does not have the interface {interface} any more")

    return count


def leave() -> None:
    """Ends the process, successfully: threads that PowerSGD's hook has left in Gloo would abort it on the usual way."""
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
