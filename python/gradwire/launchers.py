"""What `gradwire run --launcher` can be: local, ssh and mpi; each makes of the command line a job that run() starts."""

from __future__ import annotations

import ipaddress
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradwire import ssh
from gradwire.child import Host, Line, LocalHost
from gradwire.hosts import HostSlots, is_this_machine, read_hosts
from gradwire.job import Placement
from gradwire.launch import JobResult, run_job
from gradwire.mpi_launch import run_mpi_job

LAUNCHERS = ("local", "ssh", "mpi")
_KNOWN = ("sge", "yarn", "slurm")


@dataclass(frozen=True)
class Request:
    """What `gradwire run` was asked for.

    Attributes:
        hosts: -H as given; None: this machine. servers: None: as many as workers, if used; under mpi, none.
        env: variables for all processes. copy_to: folder on every host to which the current one is copied first.
        ssh: the ssh program with its options.
    """

    command: Sequence[str]
    workers: int
    servers: int | None
    launcher: str
    hosts: str | None
    env: Mapping[str, str]
    copy_to: str | None
    ssh: tuple[str, ...]

    @property
    def folder(self) -> str:
        return self.copy_to or os.getcwd()

    @property
    def servers_to_start(self) -> int:
        if self.servers is not None:
            return self.servers
        return 0 if self.launcher == "mpi" else self.workers

    def host_rows(self) -> list[HostSlots]:
        """Raises: ValueError: no -H, or slots for fewer workers than are asked for."""
        if self.hosts is None:
            raise ValueError(
                f"run: --launcher {self.launcher} needs hosts: give -H node1:2,node2:2, or a file"
            )
        rows = read_hosts(self.hosts)
        slots = sum(row.slots for row in rows)
        if slots < self.workers:
            raise ValueError(
                f"run: -H has {slots} slots for {self.workers} workers: raise the slots or lower -n"
            )
        return rows


def run(request: Request, output: Callable[[Line], None], report: Callable[[str], None]) -> JobResult:
    """Runs the job to its end. output, report and what it returns and raises: as launch.run_job.

    Raises: ssh.HostUnreachable: a host has no address, or nothing could be copied to it.
    """
    if request.launcher not in LAUNCHERS:
        what = "is not there yet" if request.launcher in _KNOWN else "is not a launcher"
        raise ValueError(f"run: --launcher {request.launcher} {what}: expected one of {', '.join(LAUNCHERS)}")
    starter = {"local": _run_here, "ssh": _run_by_ssh, "mpi": _run_by_mpi}[request.launcher]
    return starter(request, output, report)


def _run_here(request: Request, output: Callable[[Line], None], report: Callable[[str], None]) -> JobResult:
    if request.copy_to is not None:
        raise ValueError("run: --sync-dst-dir goes with --launcher ssh or mpi; local runs where you are")
    if request.hosts is not None:
        for row in request.host_rows():
            if not is_this_machine(row.name):
                raise ValueError(
                    f"run: -H names {row.name}, but --launcher local starts all processes on this machine: "
                    "expected localhost only; leave -H out, or give --launcher ssh"
                )
    return run_job(
        request.command, request.workers, request.servers, env=request.env, output=output, report=report
    )


def _ssh_hosts(request: Request, rows: Sequence[HostSlots]) -> tuple[list[ssh.SshHost], LocalHost]:
    """Returns the hosts, and this machine, under addresses at which all of them reach each other."""
    hosts = [
        ssh.SshHost(
            row.name, ssh.resolve(row.name, request.ssh), request.ssh, request.folder, frozenset(request.env)
        )
        for row in rows
    ]
    here = LocalHost(ssh.own_address(first_remote(hosts)))
    return [reachable(host, here) for host in hosts], here


def first_remote(hosts: Sequence[Host]) -> str:
    """Returns the address of the first host that is not this machine; a loopback address if none is another."""
    addresses = [host.address for host in hosts] or [LocalHost().address]
    return next((address for address in addresses if not _is_loopback(address)), addresses[0])


def reachable(host: ssh.SshHost, here: LocalHost) -> ssh.SshHost:
    """Returns a host under an address that others reach: this machine has loopback for itself alone."""
    if _is_loopback(host.address) and not _is_loopback(here.address):
        return replace(host, address=here.address)
    return host


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _copy(request: Request, hosts: Sequence[ssh.SshHost], report: Callable[[str], None]) -> None:
    if request.copy_to is None:
        return
    for host in hosts:
        report(f"copying {Path.cwd()} to {host.name}:{host.folder}")
        host.copy_here(Path.cwd())


def placed(rows: Sequence[HostSlots], hosts: Sequence[Host], here: Host, workers: int) -> Placement:
    """Workers fill the hosts' slots in order; servers go one after the other to the hosts that are left, or, if none
    is, to all; the scheduler stays here."""
    of_workers = [host for row, host in zip(rows, hosts, strict=True) for _ in range(row.slots)][:workers]
    left = [host for host in hosts if host not in of_workers] or list(hosts)

    def place(role: str, rank: int) -> Host:
        if role == "scheduler":
            return here
        return of_workers[rank] if role == "worker" else left[rank % len(left)]

    return place


def _run_by_ssh(request: Request, output: Callable[[Line], None], report: Callable[[str], None]) -> JobResult:
    rows = request.host_rows()
    hosts, here = _ssh_hosts(request, rows)
    _copy(request, hosts, report)
    return run_job(
        request.command,
        request.workers,
        request.servers,
        env=request.env,
        placement=placed(rows, hosts, here, request.workers),
        output=output,
        report=report,
    )


def _run_by_mpi(request: Request, output: Callable[[Line], None], report: Callable[[str], None]) -> JobResult:
    rows = [] if request.hosts is None else request.host_rows()
    others = [row for row in rows if not is_this_machine(row.name)]
    if request.copy_to is not None and not others:
        given = "there is no -H" if request.hosts is None else f"-H {request.hosts} names this machine only"
        raise ValueError(
            f"run: --sync-dst-dir {request.copy_to} copies to other hosts, but {given}: expected -H "
            "node1:2,node2:2, or no --sync-dst-dir"
        )
    hosts, here = _ssh_hosts(request, others)
    elsewhere = len(others) == len(rows) and all(host.address != here.address for host in hosts)
    first = hosts[0] if hosts and elsewhere else here  # mpirun begins with its own host wherever -H names it
    _copy(request, hosts, report)
    return run_mpi_job(
        request.command,
        request.workers,
        request.servers_to_start,
        env=request.env,
        hosts=[f"{row.name}:{row.slots}" for row in rows],
        agent=shlex.join(request.ssh),
        folder=request.folder,
        address=here.address,
        first=first.address,
        output=output,
        report=report,
    )
