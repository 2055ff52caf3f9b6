"""Where a bench's processes run, what they cost there, and what went over their links."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gradwire.bench.plan import UNSHAPED
from gradwire.launch.child import Host, LocalHost
from gradwire.launch.rendezvous import free_port

_FIRST_PORT = 29_500


class Watched:
    """A host as seen by one process of a job, which remembers that process."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.pid: int | None = None

    @property
    def address(self) -> str:
        return self._host.address

    @property
    def namespace(self) -> str | None:
        return self._host.namespace

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        process = self._host.popen(command, **options)
        self.pid = process.pid
        return process

    def cpu_seconds(self) -> float:
        """CPU time of the process, all its threads, which must be alive."""
        assert self.pid is not None
        return time.clock_gettime((~self.pid << 3) | 2)  # Linux's clock id of another process's CPU time


class Network:
    """The hosts of a bench: this machine, or one namespace per worker and server behind shaped links."""

    def __init__(self, workers: Sequence[Host], servers: Sequence[Host], scheduler: Host, lab: Any) -> None:
        self._hosts = {"worker": workers, "server": servers, "scheduler": [scheduler]}
        self._lab = lab
        self._watched: dict[tuple[str, int], Watched] = {}
        self._meetings = 0

    @classmethod
    @contextmanager
    def open(
        cls,
        ranks: int,
        servers: int,
        bandwidth: str | None,
        colocated: bool,
        queue_seconds: float | None = None,
        ranks_per_host: int = 1,
    ) -> Iterator[Network]:
        """Makes the hosts, and removes them at the end.

        bandwidth: of each link; UNSHAPED: hosts of their own behind links as fast as they are; None: all here.
        queue_seconds: how long a packet may wait before a link; None: NetLab's own.
        ranks_per_host: how many ranks, one after the other, share a host and its link.

        Raises: NetLabUnavailable: a bandwidth was given, and namespaces cannot be made here.
        """
        here = LocalHost()
        if bandwidth is None:
            yield cls([here] * ranks, [here] * servers, here, None)
            return
        from gradwire.netlab import QUEUE_SECONDS, NetLab

        rate = None if bandwidth == UNSHAPED else bandwidth
        queue = QUEUE_SECONDS if queue_seconds is None else queue_seconds
        first = -(-ranks // ranks_per_host)
        hosts = first if colocated else first + servers
        with NetLab(hosts=hosts, bandwidth=rate, queue_seconds=queue) as lab:
            workers = [lab.hosts[rank // ranks_per_host] for rank in range(ranks)]
            yield cls(
                workers, workers if colocated else lab.hosts[first:], LocalHost(lab.bridge_address), lab
            )

    def place(self, role: str, rank: int) -> Watched:
        """The placement of run_job: where this process of the job runs."""
        if (role, rank) not in self._watched:
            self._watched[role, rank] = Watched(self._hosts[role][rank])
        return self._watched[role, rank]

    def forget_processes(self) -> None:
        """To be called between two jobs."""
        self._watched.clear()

    def meeting(self, ranks: int) -> Callable[[int], dict[str, str]]:
        """Returns the variables by which the workers of one job find rank 0, each rank's: those of torchrun."""
        address = self.place("worker", 0).address
        self._meetings += 1  # no process listens in a fresh namespace, but the job before may just have
        port = free_port(address) if self._lab is None else _FIRST_PORT + self._meetings

        def environment(rank: int) -> dict[str, str]:
            return {
                "MASTER_ADDR": address,
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
            }

        return environment

    def interface(self, host: Watched) -> str:
        """Names the interface that host's traffic takes."""
        if host.namespace is not None:
            return "eth0"
        return "lo" if self._lab is None else f"gl{self._lab.name}b"

    @property
    def lab(self) -> str | None:
        """Names the netlab whose hosts these are; None: there is but this machine."""
        return None if self._lab is None else str(self._lab.name)

    def server_seconds(self) -> float:
        """CPU seconds of all server processes so far."""
        return sum(host.cpu_seconds() for (role, _), host in self._watched.items() if role == "server")

    def sent_bytes(self) -> float | None:
        """Bytes that left the workers' hosts so far; None where they have no links of their own."""
        if self._lab is None:
            return None
        workers = self._lab.hosts[: len(self._hosts["worker"])]
        return float(sum(host.counters().sent_bytes for host in workers))
