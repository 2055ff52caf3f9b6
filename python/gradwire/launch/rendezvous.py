"""Where the workers of a job meet before they know each other: what the launcher tells them, by variables.

A place is an address and a port of the host of rank 0. Where that is this machine, the port is free; on another host
nobody can look, so it is drawn.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Mapping, Sequence

from gradwire.launch.child import Host, LocalHost
from gradwire.settings import endpoints

# Of torch's process group: given by who starts a job, or by the launcher that this process is of.
OF_TORCH = ("MASTER_ADDR", "MASTER_PORT")

_PORTS = (20_000, 32_000)  # below those that systems hand out
_TRIES = 100


def for_torch(environment: Mapping[str, str], rank_0: Host, local: LocalHost) -> dict[str, str]:
    """Returns variables by which torch.distributed.init_process_group() finds the other workers.

    Args:
        environment: of the job; what it says of the place counts.
        rank_0: host of rank 0; `local` itself if it is this machine.
        local: this machine.
    """
    if all(environment.get(name) for name in OF_TORCH):
        return {name: environment[name] for name in OF_TORCH}
    address, port = _place_at(rank_0, local)
    return dict(zip(OF_TORCH, (address, str(port)), strict=True))


def for_choosing_workers(
    workers: Sequence[Host], servers: Sequence[Host], local: LocalHost
) -> dict[str, str]:
    """Returns variables of workers that choose a placement: they measure their link first, at a place of their own.

    Args:
        workers, servers: their hosts by rank; `local` itself where that is this machine.
        local: this machine.
    """
    apart = {host.address for host in workers}.isdisjoint(host.address for host in servers)
    return {
        "GRADWIRE_MASTER": endpoints.written(*_place_at(workers[0], local)),
        "GRADWIRE_SERVER_HOSTS": "apart" if apart and servers else "beside",
    }


def _place_at(host: Host, local: LocalHost) -> tuple[str, int]:
    return host.address, free_port(local.address) if host is local else random.randrange(*_PORTS)


def free_port(address: str) -> int:
    """Finds a port nobody listens on, for what cannot choose one itself. The system hands none of these to connections,
    one of which might have it before it is used.

    Args:
        address: of this machine.

    Raises:
        OSError: there is none, or the address is not this machine's.
    """
    for port in random.SystemRandom().sample(range(*_PORTS), _TRIES):
        try:
            with socket.create_server((address, port)):
                return port
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    first, end = _PORTS
    raise OSError(errno.EADDRINUSE, f"{_TRIES} ports from {first} to {end - 1} at {address} are all in use")
