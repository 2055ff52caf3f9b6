"""What a job consists of: each process's command, environment and host. Nothing is started here."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwire import settings as settings_module
from gradwire.child import Host, LocalHost
from gradwire.settings import Settings

Placement = Callable[[str, int], Host | None]

_NO_TIMEOUT = 7 * 86400.0  # seconds; for the roll call of servers that may never be wanted
# What says who a process is in a job; a job started from inside another must not inherit it.
_IDENTITY = (
    *("GRADWIRE_ROLE", "GRADWIRE_RANK", "GRADWIRE_NUM_WORKERS", "GRADWIRE_NUM_SERVERS", "GRADWIRE_SCHEDULER"),
    *("DMLC_ROLE", "DMLC_RANK", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER"),
    *("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_WORKER_ID", "DMLC_SERVER_ID", "DMLC_TASK_ID"),
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

    def host(self, role: str, rank: int) -> Host:
        return self.placement(role, rank) or self.local

    def scheduler_command(self, announce_fd: int) -> list[str]:
        """The scheduler picks a port and writes its endpoint to announce_fd."""
        endpoint = settings_module.endpoint(self.host("scheduler", 0).address, 0)
        return [*self._node_command("scheduler", endpoint), "--announce", str(announce_fd)]

    def server_command(self, rank: int, scheduler: str) -> list[str]:
        command = [*self._node_command("server", scheduler), "--rank", str(rank)]
        command += ["--streams", str(self.settings.streams), "--checksum", self.settings.checksum]
        if self.settings.server_threads:
            command += ["--threads", str(self.settings.server_threads)]
        host = self.host("server", rank)
        if identity := self._host_identity(host):
            command += ["--host-id", identity]
        if host is not self.local:
            return [*command, "--bind-host", host.address]
        if self.settings.bind_host is None and self.settings.interface is not None:
            return [*command, "--interface", self.settings.interface]
        return [*command, "--bind-host", self.settings.bind_host or host.address]

    def _node_command(self, role: str, scheduler: str) -> list[str]:
        optional = ["--servers-optional"] if role == "scheduler" and not self.servers_asked_for else []
        may_be_unused = role == "server" and not self.servers_asked_for
        rendezvous = _NO_TIMEOUT if may_be_unused else self.settings.rendezvous_timeout
        return [
            *(self.server_program, "--role", role, "--scheduler", scheduler),
            *("--workers", str(self.workers), "--servers", str(self.servers)),
            *("--rendezvous-timeout", f"{rendezvous:g}"),
            *("--liveness-timeout", f"{self.settings.liveness_timeout:g}"),
            *("--log-level", self.settings.log_level),
            *optional,
        ]

    def worker_env(self, rank: int, scheduler: str) -> dict[str, str]:
        """The environment of a worker: who it is, in GRADWIRE_* and in DMLC_*, over the job's variables."""
        threads = max(1, len(os.sched_getaffinity(0)) // self.workers)
        defaults = {
            "PYTHONUNBUFFERED": "1",  # or the lines of a Python worker would come in blocks
            "OMP_NUM_THREADS": str(threads),  # or N workers would start N threads for each core
        }
        identity = {
            "GRADWIRE_ROLE": "worker",
            "DMLC_ROLE": "worker",
            "GRADWIRE_RANK": str(rank),
            "DMLC_RANK": str(rank),
            "DMLC_WORKER_ID": str(rank),
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
        if host_id := self._host_identity(self.host("worker", rank)):
            identity["GRADWIRE_HOST_ID"] = host_id
        return defaults | dict(self.environment) | identity | dict(self.worker_environment(rank))

    def _host_identity(self, host: Host) -> str | None:
        """A namespace is a host of its own: sharing this machine is not sharing a host."""
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
    if shutil.which(command[0], path=base.get("PATH")) is None:
        expected = "expected a file that can be run, or a program on PATH"
        raise FileNotFoundError(f"run: {command[0]} is not a program: {expected}")
    settings = settings_module.read(base)
    count = workers if servers is None else servers
    return Job(
        command=command,
        workers=workers,
        servers=count,
        servers_asked_for=bool(servers),
        environment=base,
        worker_environment=worker_env or (lambda rank: {}),
        placement=placement or (lambda role, rank: None),
        settings=settings,
        server_program=find_server_program(settings),
        local=LocalHost(),
    )
