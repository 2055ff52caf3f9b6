"""What a job consists of: each process's command, environment and host. Nothing is started here."""

from __future__ import annotations

import os
import random
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwire import settings as settings_module
from gradwire.child import Host, LocalHost, MakeSplitter, OwnLines
from gradwire.settings import Settings
from gradwire.ssh import SshHost

Placement = Callable[[str, int], Host | None]

_MEETING_PORTS = (
    20_000,
    32_000,
)  # of a host where nobody can look which is free; below those that systems hand out
_NO_TIMEOUT = 7 * 86400.0  # seconds; for the roll call of servers that may never be wanted
# What says who a process is in a job; a job started from inside another must not inherit it.
_IDENTITY = (
    *("GRADWIRE_ROLE", "GRADWIRE_RANK", "GRADWIRE_NUM_WORKERS", "GRADWIRE_NUM_SERVERS", "GRADWIRE_SCHEDULER"),
    *("DMLC_ROLE", "DMLC_RANK", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER"),
    *("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_WORKER_ID", "DMLC_SERVER_ID", "DMLC_TASK_ID"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK"),
)


def find_server_program(settings: Settings) -> str:
    """Returns the path of gradwire-server.

    Raises: FileNotFoundError: it is nowhere; says where it was looked for.
    """
    if settings.server_program is not None:
        found = shutil.which(settings.server_program)
        if found is None:
            given = settings.server_program
            raise FileNotFoundError(
                f"run: GRADWIRE_SERVER_PROGRAM={given} is not a program: correct or unset it"
            )
        return found
    folders = [str(Path(sys.argv[0]).resolve().parent), str(Path(sys.executable).parent)]
    for path in (*folders, None):  # None is PATH
        if found := shutil.which("gradwire-server", path=path):
            return found
    raise FileNotFoundError(
        f"run: no program gradwire-server in {', '.join(dict.fromkeys(folders))} or on PATH: "
        "install gradwire, or set GRADWIRE_SERVER_PROGRAM"
    )


@dataclass(frozen=True)
class Process:
    """One process of a job. rank None: it is all of its role in one (mpirun), or the only one."""

    role: str
    rank: int | None
    host: Host
    command: Sequence[str]
    environment: Mapping[str, str]
    make_splitter: MakeSplitter = OwnLines


@dataclass(frozen=True)
class Job:
    """The processes of one job, before any runs."""

    command: Sequence[str]
    workers: int
    servers: int
    servers_asked_for: bool  # else they are there in case a worker wants one
    environment: Mapping[str, str]  # of all processes, without what says who they are
    worker_environment: Callable[[int], Mapping[str, str]]
    placement: Placement
    settings: Settings
    server_program: str
    local: LocalHost
    meeting: Mapping[str, str]  # where workers meet who choose a placement themselves, and what they go by

    def host(self, role: str, rank: int) -> Host:
        return self.placement(role, rank) or self.local

    def scheduler(self, announce_fd: int) -> Process:
        """The first to be started: it writes where it listens to announce_fd."""
        host = self.host("scheduler", 0)
        return Process("scheduler", None, host, self.scheduler_command(announce_fd), self.environment)

    def processes(self, scheduler: str) -> list[Process]:
        """All others, who need the scheduler's address."""
        servers = [
            Process(
                "server",
                rank,
                self.host("server", rank),
                self.server_command(rank, scheduler),
                self.environment,
            )
            for rank in range(self.servers)
        ]
        return servers + [
            Process("worker", rank, self.host("worker", rank), self.command, self.worker_env(rank, scheduler))
            for rank in range(self.workers)
        ]

    def scheduler_command(self, announce_fd: int) -> list[str]:
        """The scheduler picks a port and writes its endpoint to announce_fd."""
        endpoint = settings_module.endpoint(self.host("scheduler", 0).address, 0)
        return [*self._node_command("scheduler", endpoint), "--announce", str(announce_fd)]

    def server_command(self, rank: int, scheduler: str) -> list[str]:
        host = self.host("server", rank)
        return [
            *(*self._node_command("server", scheduler), "--rank", str(rank)),
            *self._server_options(self._host_identity(host)),
            *self._bind_options(host),
        ]

    def _server_options(self, host_identity: str | None) -> list[str]:
        """What servers take from the settings, whoever starts them."""
        options = ["--streams", str(self.settings.streams), "--checksum", self.settings.checksum]
        options += ["--credit-bytes", str(self.settings.credit_bytes)]
        options += ["--fusion-bytes", str(self.settings.fusion_bytes)]
        if self.settings.timeline is not None:
            options += ["--timeline", self.settings.timeline]
        if self.settings.server_threads:
            options += ["--threads", str(self.settings.server_threads)]
        return [*options, "--host-id", host_identity] if host_identity else options

    def _bind_options(self, host: Host) -> list[str]:
        if host is not self.local:
            return ["--bind-host", host.address]
        if self.settings.bind_host is None and self.settings.interface is not None:
            return ["--interface", self.settings.interface]
        return ["--bind-host", self.settings.bind_host or host.address]

    def _node_command(self, role: str, scheduler: str) -> list[str]:
        optional = ["--servers-optional"] if role == "scheduler" and not self.servers_asked_for else []
        may_be_unused = role == "server" and not self.servers_asked_for
        rendezvous = _NO_TIMEOUT if may_be_unused else self.settings.rendezvous_timeout
        return [
            *(self.server_program, "--role", role, "--scheduler", scheduler),
            *("--workers", str(self.workers), "--servers", str(self.servers)),
            *("--rendezvous-timeout", f"{rendezvous:g}"),
            *("--liveness-timeout", f"{self.settings.liveness_timeout:g}"),
            *("--log-level", self.settings.log_level, "--log-format", self.settings.log_format),
            *optional,
        ]

    def worker_env(self, rank: int, scheduler: str) -> dict[str, str]:
        """The environment of a worker: who it is, in GRADWIRE_* and in DMLC_*, over the job's variables."""
        own = {"GRADWIRE_RANK": str(rank), "DMLC_RANK": str(rank), "DMLC_WORKER_ID": str(rank)}
        if host_id := self._host_identity(self.host("worker", rank)):
            own["GRADWIRE_HOST_ID"] = host_id
        of_all = self.workers_environment(scheduler, self._workers_beside(rank))
        return of_all | own | dict(self.worker_environment(rank))

    def workers_environment(self, scheduler: str, beside: int) -> dict[str, str]:
        """What all workers have in common. beside: how many share a host; hosts are taken to have this one's cores."""
        threads = max(1, len(os.sched_getaffinity(0)) // beside)
        defaults = {
            "PYTHONUNBUFFERED": "1",  # or the lines of a Python worker would come in blocks
            "OMP_NUM_THREADS": str(threads),  # or N workers would start N threads for each core
        }
        identity = {
            "GRADWIRE_ROLE": "worker",
            "DMLC_ROLE": "worker",
            "GRADWIRE_NUM_WORKERS": str(self.workers),
            "DMLC_NUM_WORKER": str(self.workers),
            "GRADWIRE_NUM_SERVERS": str(self.servers),
            "DMLC_NUM_SERVER": str(self.servers),
        }
        host, _, port = scheduler.removeprefix("tcp://").rpartition(":")
        identity |= {
            "GRADWIRE_SCHEDULER": scheduler,
            "DMLC_PS_ROOT_URI": host.strip("[]"),
            "DMLC_PS_ROOT_PORT": port,
        }
        return defaults | dict(self.environment) | identity | dict(self.meeting)

    def _workers_beside(self, rank: int) -> int:
        """Workers on the host of this one; a namespace has all cores of the machine, as the others have."""
        hosts = [self.host("worker", other) for other in range(self.workers)]
        machines = [None if host is self.local or host.namespace else host.address for host in hosts]
        return machines.count(machines[rank])

    def _host_identity(self, host: Host) -> str | None:
        """A namespace is a host of its own: sharing this machine is not sharing a host. The name that this machine has
        in its environment is no other host's, unless --env gives it to all."""
        if isinstance(host, SshHost) and "GRADWIRE_HOST_ID" not in host.variables:
            return None
        return host.namespace or self.settings.host_id


def make_job(
    command: Sequence[str],
    workers: int,
    servers: int | None,
    env: Mapping[str, str] | None = None,
    worker_env: Callable[[int], Mapping[str, str]] | None = None,
    placement: Placement | None = None,
) -> Job:
    """Checks what was asked for and finds the programs.

    Raises:
        ValueError: bad counts, no command, or a bad setting.
        FileNotFoundError: command, or gradwire-server, is not there.
    """
    if workers < 1 or (servers is not None and servers < 0):
        given = f"{workers} workers and {servers} servers"
        raise ValueError(f"run: {given}: expected at least 1 worker and no negative number of servers")
    if not command:
        raise ValueError("run: no command: give the program that every worker runs")
    base = {name: value for name, value in {**os.environ, **(env or {})}.items() if name not in _IDENTITY}
    placed = placement or (lambda role, rank: None)
    here = isinstance(placed("worker", 0) or LocalHost(), LocalHost)
    if here and shutil.which(command[0], path=base.get("PATH")) is None:
        expected = "expected a file that can be run, or a program on PATH"
        raise FileNotFoundError(f"run: {command[0]} is not a program: {expected}")
    settings = settings_module.read(base)
    chosen = settings.placement == "auto"
    count = workers if servers is None else servers
    local = LocalHost()
    return Job(
        command=command,
        workers=workers,
        servers=count,
        servers_asked_for=bool(servers) and not chosen,
        environment=base,
        worker_environment=worker_env or (lambda rank: {}),
        placement=placed,
        settings=settings,
        server_program=find_server_program(settings),
        local=local,
        meeting=_meeting(placed, workers, count, local) if chosen else {},
    )


def _meeting(placement: Placement, workers: int, servers: int, local: LocalHost) -> dict[str, str]:
    """Variables of workers that choose a placement: they measure their link first, at a place of their own."""
    host = placement("worker", 0) or local
    port = free_port(local.address) if host is local else random.randrange(*_MEETING_PORTS)
    beside = {(placement("worker", rank) or local).address for rank in range(workers)}
    apart = beside.isdisjoint((placement("server", rank) or local).address for rank in range(servers))
    return {
        "GRADWIRE_MASTER": settings_module.endpoint(host.address, port),
        "GRADWIRE_SERVER_HOSTS": "apart" if apart and servers else "beside",
    }


def free_port(address: str) -> int:
    """Finds a port nobody listens on, for what cannot choose one itself. address: of this machine."""
    with socket.create_server((address, 0)) as listener:
        return int(listener.getsockname()[1])
