"""What `gradwire run --launcher` can be: local, ssh, mpi, slurm, and the clusters sge, yarn and kubernetes; each makes
of the command line a job that run() starts."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from gradwire.launch import inherited_environment
from gradwire.launch import slurm as slurm_launch
from gradwire.launch.child import Host, Line, LocalHost
from gradwire.launch.clusters import kubernetes
from gradwire.launch.clusters.cluster_job import ClusterJob, run_queued_job
from gradwire.launch.clusters.kubernetes_manifest import as_list
from gradwire.launch.clusters.sge import SgeJob
from gradwire.launch.clusters.yarn import YarnJob
from gradwire.launch.hosts import HostSlots, is_this_machine, read_hosts
from gradwire.launch.job import Placement
from gradwire.launch.mpi import run_mpi_job
from gradwire.launch.remote import ssh
from gradwire.launch.supervisor import JobResult, run_job
from gradwire.settings import definitions as settings
from gradwire.settings.definitions import Settings
from gradwire.timeline.recording import Recording

_Host = TypeVar("_Host")

_LEAST_MEMORY = 1 << 20  # bytes
_IN_THE_QUEUE = "86400s"  # until all of a job have left it: who waits longer says so


@dataclass(frozen=True)
class Request:
    """What `gradwire run` was asked for.

    Attributes:
        hosts: -H as given; None: this machine. servers: None: as many as workers, if used; under what starts all
            workers as one (mpi, slurm and the clusters), none.
        env: variables for all processes. role_env: further ones of all workers, or of all servers.
        copy_to: folder on every host to which the current one is copied first.
        ssh: the ssh program with its options. restarts, joins: as for launch.run_job.
        queue: of a cluster that has queues, as it takes it; None: its own choice.
        cores, memory: of each worker and server, where clusters are told; memory in bytes; None: the cluster's choice.
        image, namespace: of Kubernetes; namespace None: the one that kubectl is set to.
        recording: of a timeline; its environment is in env.
        stdin_rank, unfinished: as for launch.run_job.
    """

    command: Sequence[str]
    workers: int
    servers: int | None
    launcher: str
    hosts: str | None
    env: Mapping[str, str]
    copy_to: str | None
    ssh: tuple[str, ...]
    restarts: int = 0
    joins: str | None = None
    queue: str | None = None
    cores: int | None = None
    memory: int | None = None
    image: str | None = None
    namespace: str | None = None
    role_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    recording: Recording | None = None
    stdin_rank: int | None = None
    unfinished: Callable[[Line], None] | None = None

    @property
    def folder(self) -> str:
        return self.copy_to or os.getcwd()

    @property
    def cluster_env(self) -> dict[str, str]:
        """env, for a job that may wait in a queue, one part of it longer than another."""
        given = {**os.environ, **self.env}.get("GRADWIRE_RENDEZVOUS_TIMEOUT")
        return {**self.env, "GRADWIRE_RENDEZVOUS_TIMEOUT": given or _IN_THE_QUEUE}

    @property
    def settings(self) -> Settings:
        """Raises: ValueError: one of all processes' settings is bad."""
        return settings.read(inherited_environment.of_job(self.env))

    @property
    def servers_to_start(self) -> int:
        if self.servers is not None:
            return self.servers
        return 0 if find(self.launcher).one_death_ends_all else self.workers

    def variables(self, role: str) -> frozenset[str]:
        """Names of the variables that were given for a role."""
        return frozenset(self.env).union(self.role_env.get(role, ()))

    def host_rows(self) -> list[HostSlots]:
        """Raises: ValueError: no -H, or slots for fewer workers than are asked for."""
        if self.hosts is None:
            raise ValueError(
                f"run: --launcher {self.launcher} needs hosts: give -H node1:2,node2:2, or a file"
            )
        rows = read_hosts(self.hosts)
        slots = sum(row.slots for row in rows)
        if slots < self.workers:
            is_name = len(rows) == 1 and not os.path.isfile(self.hosts)
            no_file = f" (there is no file {self.hosts}: it is taken as a host's name)" if is_name else ""
            raise ValueError(
                f"run: -H has {slots} slot{'s' * (slots != 1)} for {self.workers} workers{no_file}: raise the slots or "
                "lower -n"
            )
        return rows


def record(file: Path, launcher: str, hosts: str | None) -> Recording:
    """Makes the recording of a job's timeline. Raises: as Recording."""
    return Recording(file, fetched=find(launcher).over_ssh and hosts is not None)


def run(request: Request, output: Callable[[Line], None], report: Callable[[str], None]) -> JobResult:
    """Runs the job to its end. output, report and what it returns and raises: as launch.run_job.

    Raises: ssh.HostUnreachable: a host has no address, or nothing could be copied to it.
    """
    launcher = find(request.launcher)
    _require_one_death_at_a_time(request)
    _require_options_of(request)
    return launcher.start(request, output, report)


def _require_one_death_at_a_time(request: Request) -> None:
    """mpirun, srun and the clusters end all that they have started with the first that dies: no job goes on there."""
    if not find(request.launcher).one_death_ends_all:
        return
    given = request.settings
    asked = [f"--replicas {given.replicas} (GRADWIRE_REPLICAS)"] if given.replicas else []
    asked += ["--on-failure continue (GRADWIRE_ON_FAILURE)"] if given.on_failure == "continue" else []
    asked += [f"--restarts {request.restarts}"] if request.restarts else []
    asked += [f"--join {request.joins}"] if request.joins else []
    if asked:
        raise ValueError(
            f"run: {asked[0]} with --launcher {request.launcher}, where all processes end when one "
            "dies: use --launcher ssh or local, or leave it out"
        )


def _require_options_of(request: Request) -> None:
    """Refuses options of one launcher under another, and under clusters what they decide themselves."""
    launcher = request.launcher
    row = find(launcher)
    if request.queue is not None and not row.has_queue:
        ours = _names(lambda row: row.has_queue)
        raise ValueError(f"run: --queue {request.queue} needs --launcher {ours}; {launcher} has no queues")
    for option, size in (("--cores", request.cores), ("--memory", request.memory)):
        if size is not None and not row.has_sizes:
            raise ValueError(
                f"run: {option} needs --launcher {_names(lambda row: row.has_sizes)}; {launcher} does not "
                "limit processes: leave it out"
            )
    if request.stdin_rank is not None and launcher != "local":
        raise ValueError(
            f"run: --stdin {request.stdin_rank} or --debug {request.stdin_rank} needs --launcher local; workers of "
            f"{launcher} run where this stdin cannot reach them: leave it out"
        )
    if request.memory is not None and request.memory < _LEAST_MEMORY:
        raise ValueError(f"run: --memory {request.memory} bytes: expected 1MiB or more, such as 4GB")
    for option, given in (("--image", request.image), ("--namespace", request.namespace)):
        if given is not None and launcher != "kubernetes":
            raise ValueError(f"run: {option} {given} needs --launcher kubernetes; leave it out")
    if request.ssh != ("ssh",) and not row.over_ssh:
        ours = _names(lambda row: row.over_ssh)
        raise ValueError(
            f"run: {shlex.join(request.ssh)!r} (--ssh, with -p and -i) needs --launcher {ours}; {launcher} "
            "does not use ssh: leave it out"
        )
    if row.picks_hosts:
        _require_no_known_machines(request)


def _require_no_known_machines(request: Request) -> None:
    launcher = request.launcher
    if request.hosts is not None:
        instead = "; --queue all.q@node1 names some" if launcher == "sge" else ""
        raise ValueError(
            f"run: -H {request.hosts} with --launcher {launcher}, which chooses machines itself: leave -H out{instead}"
        )
    if request.copy_to is not None:
        raise ValueError(
            f"run: --sync-dst-dir {request.copy_to} needs --launcher ssh or mpi; machines of {launcher} are chosen "
            "after the job is submitted: put the files where all of them find them"
        )
    if request.settings.placement == "auto":
        raise ValueError(
            f"run: --placement auto (GRADWIRE_PLACEMENT) with --launcher {launcher}: the machine of the "
            "rendezvous is not known yet; give -s for servers, or use a store without servers"
        )


def _kubernetes_job(request: Request) -> kubernetes.KubernetesJob:
    if request.image is None:
        raise ValueError(
            "run: --launcher kubernetes needs --image IMAGE: one with gradwire, python3 and what CMD needs"
        )
    if request.env.get("GRADWIRE_TIMELINE"):
        raise ValueError(
            "run: --timeline with --launcher kubernetes: files of pods are deleted with them; leave it out"
        )
    return kubernetes.make_kubernetes_job(
        request.command,
        request.workers,
        request.servers_to_start,
        env=request.cluster_env,
        role_env=request.role_env,
        image=request.image,
        namespace=request.namespace,
        cores=request.cores,
        memory=request.memory,
    )


def manifest(request: Request) -> str:
    """Returns what run() would have Kubernetes make, as JSON for `kubectl create -f`; starts nothing.

    Raises: ValueError: another launcher, or what run() refuses too.
    """
    if request.launcher != "kubernetes":
        raise ValueError(
            f"run: --dry-run shows the manifest of --launcher kubernetes; {request.launcher} has none: leave it out"
        )
    _require_one_death_at_a_time(request)
    _require_options_of(request)
    return json.dumps(as_list(_kubernetes_job(request).documents()), indent=2)


def _run_here(request: Request, output: Callable[[Line], None], report: Callable[[str], None]) -> JobResult:
    if request.copy_to is not None:
        raise ValueError("run: --sync-dst-dir needs --launcher ssh or mpi; local runs in the current folder")
    if request.hosts is not None:
        for row in request.host_rows():
            if not is_this_machine(row.name):
                raise ValueError(
                    f"run: -H names {row.name}, but --launcher local starts all processes on this machine: "
                    "expected localhost only; leave -H out, or give --launcher ssh"
                )
    return run_job(
        request.command,
        request.workers,
        request.servers,
        env=request.env,
        role_env=request.role_env,
        output=output,
        report=report,
        restarts=request.restarts,
        joins=request.joins,
        stdin_rank=request.stdin_rank,
        unfinished=request.unfinished,
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


def _bring_parts(request: Request, hosts: Sequence[ssh.SshHost], report: Callable[[str], None]) -> None:
    """Brings what processes on other hosts have left of a timeline."""
    if request.recording is None:
        return
    for host in hosts:
        try:
            host.move_here(str(request.recording.there), request.recording.folder)
        except ssh.HostUnreachable as error:
            report(str(error))


def _seen(request: Request) -> contextlib.AbstractContextManager[list[str]]:
    """Gives words before a command that look, on a machine that nobody knows yet, for the folder of a timeline."""
    return contextlib.nullcontext(list[str]()) if request.recording is None else request.recording.seen()


def _fill(rows: Sequence[HostSlots], hosts: Sequence[_Host], workers: int) -> list[_Host]:
    """Returns each worker's host: workers fill the slots in order. Slots that are left may be billions."""
    slots = (host for row, host in zip(rows, hosts, strict=True) for _ in range(row.slots))
    return list(itertools.islice(slots, workers))


def placed(rows: Sequence[HostSlots], hosts: Sequence[Host], here: Host, workers: int) -> Placement:
    """Workers fill the hosts' slots in order; servers go one after the other to the hosts that are left, or, if none
    is, to all; the scheduler stays here."""
    of_workers = _fill(rows, hosts, workers)
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
    place = placed(rows, hosts, here, request.workers)

    def place_with_variables(role: str, rank: int) -> Host | None:
        host = place(role, rank)
        return replace(host, variables=request.variables(role)) if isinstance(host, ssh.SshHost) else host

    result = run_job(
        request.command,
        request.workers,
        request.servers,
        env=request.env,
        role_env=request.role_env,
        placement=place_with_variables,
        output=output,
        report=report,
        restarts=request.restarts,
        joins=request.joins,
        unfinished=request.unfinished,
    )
    _bring_parts(request, hosts, report)
    return result


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
    result = run_mpi_job(
        request.command,
        request.workers,
        request.servers_to_start,
        env=request.env,
        role_env=request.role_env,
        hosts=[f"{row.name}:{row.slots}" for row in rows],
        agent=shlex.join(request.ssh),
        folder=request.folder,
        address=here.address,
        first=first.address,
        output=output,
        report=report,
    )
    _bring_parts(request, hosts, report)
    return result


def _run_by_slurm(
    request: Request, output: Callable[[Line], None], report: Callable[[str], None]
) -> JobResult:
    if request.copy_to is not None:
        raise ValueError(
            "run: --sync-dst-dir needs --launcher ssh or mpi; nodes of Slurm share a file system, or have sbcast"
        )
    rows = [] if request.hosts is None else request.host_rows()
    names = [row.name for row in rows] or slurm_launch.nodes()
    others = [name for name in names if not is_this_machine(name)]
    address = ssh.own_address(slurm_launch.node_address(others[0])) if others else LocalHost().address
    with _seen(request) as looking:
        return slurm_launch.run_slurm_job(
            request.command,
            request.workers,
            request.servers_to_start,
            env=request.env,
            role_env=request.role_env,
            hosts=_fill(rows, [row.name for row in rows], request.workers),
            address=address,
            elsewhere=bool(others),
            looking=looking,
            output=output,
            report=report,
        )


def _run_by_queue(
    request: Request, output: Callable[[Line], None], report: Callable[[str], None]
) -> JobResult:
    kinds: dict[str, type[ClusterJob]] = {"sge": SgeJob, "yarn": YarnJob}
    sizes = {"cores": request.cores, "memory": request.memory}
    with _seen(request) as looking:
        return run_queued_job(
            kinds[request.launcher],
            request.command,
            request.workers,
            request.servers_to_start,
            env=request.cluster_env,
            role_env=request.role_env,
            queue=request.queue,
            sizes={name: size for name, size in sizes.items() if size is not None},
            looking=looking,
            output=output,
            report=report,
        )


def _run_by_kubernetes(
    request: Request, output: Callable[[Line], None], report: Callable[[str], None]
) -> JobResult:
    return kubernetes.run_kubernetes_job(_kubernetes_job(request), output, report)


@dataclass(frozen=True)
class Launcher:
    """How the processes of a job are started.

    Attributes:
        picks_hosts: it chooses machines itself, when it has some to give.
        one_death_ends_all: all workers end with the first that dies.
        has_queue, has_sizes: it is told a queue, and how much of a machine a process takes.
        over_ssh: it reaches hosts by ssh, by which what processes have left there can be brought here.
    """

    name: str
    start: Callable[[Request, Callable[[Line], None], Callable[[str], None]], JobResult]
    picks_hosts: bool = False
    one_death_ends_all: bool = False
    has_queue: bool = False
    has_sizes: bool = False
    over_ssh: bool = False


LAUNCHERS = (
    Launcher("local", _run_here),
    Launcher("ssh", _run_by_ssh, over_ssh=True),
    Launcher("mpi", _run_by_mpi, one_death_ends_all=True, over_ssh=True),
    Launcher("slurm", _run_by_slurm, one_death_ends_all=True),
    Launcher("sge", _run_by_queue, picks_hosts=True, one_death_ends_all=True, has_queue=True),
    Launcher(
        "yarn", _run_by_queue, picks_hosts=True, one_death_ends_all=True, has_queue=True, has_sizes=True
    ),
    Launcher("kubernetes", _run_by_kubernetes, picks_hosts=True, one_death_ends_all=True, has_sizes=True),
)


def find(name: str) -> Launcher:
    """Raises: ValueError: there is none of that name; lists those there are."""
    for launcher in LAUNCHERS:
        if launcher.name == name:
            return launcher
    known = ", ".join(launcher.name for launcher in LAUNCHERS)
    raise ValueError(f"run: --launcher {name} is not a launcher: expected one of {known}")


def _names(has: Callable[[Launcher], bool]) -> str:
    return " or ".join(launcher.name for launcher in LAUNCHERS if has(launcher))
