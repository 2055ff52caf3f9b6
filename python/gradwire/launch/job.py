"""What a job consists of: each process's command, environment and host. Nothing is started here."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gradwire.launch import inherited_environment, rendezvous
from gradwire.launch.child import Deliver, Host, LocalHost, MakeSplitter, OwnLines
from gradwire.launch.programs import find_server_program, refuse_launcher, require_program
from gradwire.launch.remote.ssh import SshHost
from gradwire.launch.stdin_program import reads_program_from_stdin
from gradwire.settings import definitions as settings_module
from gradwire.settings import encryption, endpoints
from gradwire.settings.definitions import Settings
from gradwire.stores import agreed_settings
from gradwire.terminal.counts import MOST_PROCESSES

Placement = Callable[[str, int], Host | None]
_STDIN = 0
_Job = TypeVar("_Job", bound="Job")

_SOME_ADDRESS = "0.0.0.0"  # of an interface, which is no loopback
_CLOSED_SECONDS = 5.0  # ample: a closed connection is known to all within 2 s
_NO_TIMEOUT = 7 * 86400.0  # seconds; for the rendezvous of servers that may never be wanted


@dataclass(frozen=True)
class Process:
    """One process of a job. rank None: it is all of its role in one (mpirun), or the only one."""

    role: str
    rank: int | None
    host: Host
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)  # a key may be in it
    make_splitter: MakeSplitter = OwnLines
    deliver: Deliver = os.kill  # of signals for what it runs
    stdin: int = subprocess.DEVNULL  # as for subprocess.Popen


@dataclass(frozen=True)
class Job:
    """The processes of one job, before any runs."""

    command: Sequence[str]
    workers: int
    servers: int
    servers_asked_for: bool  # else they are there in case a worker wants one
    # Of all processes, without what says who they are, and with the job's key.
    environment: Mapping[str, str] = field(repr=False)
    worker_environment: Callable[[int], Mapping[str, str]]
    placement: Placement
    settings: Settings
    server_program: str
    local: LocalHost
    restarts: int = 0  # of workers that die, where the job goes on without them
    joins: str | None = None  # the scheduler of a running job, which these workers are added to
    stdin_rank: int | None = None  # the worker that reads the launcher's stdin
    key_is_given: bool = False  # by the user, who can give it to others
    meeting: Mapping[str, str] = field(
        default_factory=dict
    )  # where workers meet who choose a placement themselves, and what they go by
    master: Mapping[str, str] = field(default_factory=dict)  # where the ranks of torch's process group meet
    # Variables that only the workers have, or only the servers, over those of all.
    role_variables: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    def host(self, role: str, rank: int) -> Host:
        return self.placement(role, rank) or self.local

    def of_role(self: _Job, role: str) -> _Job:
        """The job as the processes of a role have it: with the variables that are theirs alone."""
        own = self.role_variables.get(role)
        if not own:
            return self
        environment = {**self.environment, **own}
        return replace(
            self, environment=environment, settings=settings_module.read(environment), role_variables={}
        )

    @property
    def goes_on(self) -> bool:
        """Whether the job goes on without workers that die."""
        return self.settings.on_failure == "continue"

    @property
    def hears_late(self) -> bool:
        """Whether the failure that ended the job may be heard of after those that followed from it: other programs
        watch its processes."""
        return False

    @property
    def notice_seconds(self) -> float:
        """Seconds in which the others know of a process whose end is known here: its connections have closed, or its
        host had been silent for most of the liveness timeout when ssh said so."""
        return min(self.settings.liveness_timeout, _CLOSED_SECONDS)

    @property
    def lets_workers_save(self) -> bool:
        """Whether workers can be asked to end and be given time for it, while servers go on."""
        return True

    def advice(self, scheduler: str) -> str:
        """What is to be known of adding workers to this job, or of being added; empty: nothing."""
        encrypted = encryption.VARIABLE in self.environment
        if self.joins is not None:
            asks = not encrypted and self.settings.encrypt == "auto"
            if not asks or not encryption.reaches_beyond(endpoints.host_of(self.joins)):
                return ""
            return (
                f"joins {self.joins} without {encryption.VARIABLE}: if that job is encrypted, nobody is let in who has "
                "not the same one"
            )
        if not self.goes_on:
            return ""
        goes_on = "the job goes on without workers that fail"
        if encrypted and not self.key_is_given:
            return (
                f"{goes_on}; its key is its own, so that no others can be added: to add some, set "
                f"{encryption.VARIABLE} to what `gradwire key` prints before you start it"
            )
        same = f" and the same {encryption.VARIABLE}" if encrypted else ""
        own = agreed_settings.to_be_given(self.of_role("worker").settings)
        given = "".join(f"--env {shlex.quote(setting)} " for setting in own)
        return (
            f"{goes_on}; once all are here, add others with: gradwire run --join {scheduler} -n 1 -s {self.servers} "
            f"{given}CMD{same}"
        )

    def worker(self, rank: int, scheduler: str) -> Process:
        """The worker of a rank."""
        environment = self.of_role("worker").worker_env(rank, scheduler)
        stdin = _STDIN if rank == self.stdin_rank else subprocess.DEVNULL
        return Process("worker", rank, self.host("worker", rank), self.command, environment, stdin=stdin)

    def replacement(self, rank: int, scheduler: str) -> Process:
        """The worker in the place of one that died: to the outside the same, but for no fault to kill it again."""
        worker = self.worker(rank, scheduler)
        faults = worker.environment.get("GRADWIRE_FAULTS", "").split(",")
        left = ",".join(fault for fault in faults if not fault.startswith("kill="))
        return replace(worker, environment={**worker.environment, "GRADWIRE_FAULTS": left})

    def scheduler(self, announce_fd: int) -> Process:
        """The first to be started: it writes where it listens to announce_fd."""
        host = self.host("scheduler", 0)
        return Process("scheduler", None, host, self.scheduler_command(announce_fd), self.environment)

    def processes(self, scheduler: str) -> list[Process]:
        """All others, who need the scheduler's address."""
        own = self.of_role("server")
        servers = [
            Process(
                "server",
                rank,
                self.host("server", rank),
                own.server_command(rank, scheduler),
                own.environment,
            )
            for rank in range(self.servers)
        ]
        return servers + [self.worker(rank, scheduler) for rank in range(self.workers)]

    def scheduler_command(self, announce_fd: int) -> list[str]:
        """The scheduler picks a port and writes its endpoint to announce_fd."""
        endpoint = endpoints.written(self.host("scheduler", 0).address, 0)
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
        if isinstance(host, SshHost) and self.settings.interface is not None:
            return ["--interface", self.settings.interface]
        if host is not self.local:
            return ["--bind-host", host.address]
        if self.settings.bind_host is None and self.settings.interface is not None:
            return ["--interface", self.settings.interface]
        return ["--bind-host", self.settings.bind_host or host.address]

    def _node_command(self, role: str, scheduler: str) -> list[str]:
        optional = ["--servers-optional"] if role == "scheduler" and not self.servers_asked_for else []
        if encryption.VARIABLE in self.environment:
            optional += ["--key-variable", encryption.VARIABLE]
        if self.goes_on:
            optional += ["--on-failure", "continue"]
        if self.goes_on and role == "scheduler":
            optional += ["--min-workers", str(self.settings.min_workers)]
            optional += ["--regroup-timeout", f"{self.settings.regroup_timeout:g}"]
            optional += ["--regroup-patience", f"{self.settings.slow_abort:g}"]
        if self.settings.replicas:
            optional += ["--replicas", str(self.settings.replicas)]
            optional += ["--slow-warning", f"{self.settings.slow_warning:g}"]
            optional += ["--slow-abort", f"{self.settings.slow_abort:g}"]
        may_be_unused = role == "server" and not self.servers_asked_for
        rendezvous = _NO_TIMEOUT if may_be_unused else self.settings.rendezvous_timeout
        return [
            *(self.server_program, "--role", role, "--scheduler", scheduler),
            *("--workers", str(self.workers), "--servers", str(self.servers)),
            *("--rendezvous-timeout", f"{rendezvous:g}"),
            *("--liveness-timeout", f"{self.settings.liveness_timeout:g}"),
            *("--log-level", self.settings.log_level, "--log-format", self.settings.log_format),
            *(["--faults", self.settings.faults] if self.settings.faults is not None else []),
            *optional,
        ]

    def worker_env(self, rank: int, scheduler: str) -> dict[str, str]:
        """The environment of a worker: who it is, in GRADWIRE_*, in DMLC_* and as torch.distributed reads it, over the
        job's variables.
        """
        own = {"GRADWIRE_RANK": str(rank), "DMLC_RANK": str(rank), "DMLC_WORKER_ID": str(rank)}
        if self.joins is not None:  # its rank is the scheduler's to give
            own = {}
        if host_id := self._host_identity(self.host("worker", rank)):
            own["GRADWIRE_HOST_ID"] = host_id
        beside = self._workers_beside(rank)
        if self.master:
            own |= {"RANK": str(rank), "WORLD_SIZE": str(self.workers), **self.master}
            own |= {"LOCAL_RANK": str(beside.index(rank)), "LOCAL_WORLD_SIZE": str(len(beside))}
        of_all = self.workers_environment(scheduler, len(beside))
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

    def _workers_beside(self, rank: int) -> list[int]:
        """Workers on the machine of this one, itself included; a namespace has all its cores, as the others have."""
        hosts = [self.host("worker", other) for other in range(self.workers)]
        machines = [None if host is self.local or host.namespace else host.address for host in hosts]
        return [other for other in range(self.workers) if machines[other] == machines[rank]]

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
    restarts: int = 0,
    joins: str | None = None,
    role_env: Mapping[str, Mapping[str, str]] | None = None,
    stdin_rank: int | None = None,
) -> Job:
    """Checks what was asked for and finds the programs. Arguments: as for launch.run_job.

    Raises:
        ValueError: bad counts, no command, or a bad setting.
        FileNotFoundError: command, or gradwire-server, is not there.
    """
    count = workers if servers is None else servers
    if not 1 <= workers <= MOST_PROCESSES or not 0 <= count <= MOST_PROCESSES:
        raise ValueError(
            f"run: {workers} workers and {count} servers: expected at least 1 worker, no negative number of servers, "
            f"and at most {MOST_PROCESSES} of each"
        )
    if not command:
        raise ValueError("run: no command: give the program that every worker runs")
    _check_stdin(command, workers, stdin_rank)
    inherited_environment.refuse_key(env or {}, *(role_env or {}).values())
    base = inherited_environment.of_job(env or {})
    placed = placement or (lambda role, rank: None)
    here = isinstance(placed("worker", 0) or LocalHost(), LocalHost)
    if workers > 1:
        refuse_launcher("run", command)
    if here:
        require_program("run", command, {**base, **(role_env or {}).get("worker", {})}.get("PATH"))
    settings = settings_module.read(base)
    if settings.step_profile is not None:
        raise ValueError(
            "run: `gradwire plan -- CMD` times the steps of one worker alone, and CMD starts a job: give it the "
            f"workers' command, as in: gradwire plan -n {workers} -- {shlex.join(command)}"
        )
    chosen = settings.placement == "auto"
    role_variables = inherited_environment.of_roles(role_env or {}, 0 if joins is not None else count)
    settings_of_roles = [settings_module.read(base | own) for own in role_variables.values()]
    _require_mirrors(settings, count)
    _check_membership(settings, workers, restarts, joins)
    local = LocalHost()
    own_key = _given_key(settings, joins)
    key = own_key
    if key is None and joins is None:
        key = encryption.key_of_new_job(
            settings.encrypt, _listening_on(placed, workers, count, settings, *settings_of_roles)
        )
    if key is not None:
        base[encryption.VARIABLE] = key.text
    is_torchs = (
        joins is None and settings.on_failure == "abort"
    )  # its groups take no workers that go and come
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
        restarts=restarts,
        joins=joins,
        stdin_rank=stdin_rank,
        key_is_given=own_key is not None,
        meeting=_meeting(placed, workers, count, local) if chosen else {},
        master=rendezvous.for_torch(base, placed("worker", 0) or local, local) if is_torchs else {},
        role_variables=role_variables,
    )


def check_names(
    compression: str | None, reply: str, interface: str | None = None, bind_host: str | None = None
) -> None:
    """Finds a misspelt codec, and an interface or address that is not this host's, before anything is started.

    Raises: ValueError: says which setting, and what is wrong.
    """
    given = {"compression": compression, "interface": interface, "bind_host": bind_host, "reply": reply}
    if compression is None and interface is None and bind_host is None:
        return
    try:
        from gradwire.launch import settings_check
    except ImportError:  # without the compiled part a command of the user's own may still run
        return
    for name, text in settings_check.faults(given).items():
        raise ValueError(f"run: GRADWIRE_{name.upper()}={given[name]}: {text.removeprefix('address: ')}")


def check_names_here(job: Job) -> None:
    """Checks the names that the processes of a job on this machine go by. Raises: as check_names."""
    for role in ("server", "worker"):
        own = job.of_role(role).settings
        check_names(None, own.reply, own.interface, own.bind_host)


def _check_stdin(command: Sequence[str], workers: int, rank: int | None) -> None:
    if rank is not None:
        if not 0 <= rank < workers:
            raise ValueError(
                f"run: --stdin or --debug {rank}: expected the rank of a worker, 0 to {workers - 1}"
            )
        try:
            os.fstat(_STDIN)
        except OSError:
            raise ValueError(
                f"run: stdin is closed: leave --stdin or --debug {rank} out, or open it"
            ) from None
    if reads_program_from_stdin(command) and (rank is None or workers > 1):
        who = "workers have not" if rank is None else f"worker {rank} alone has"
        one = "" if workers > 1 else ", or give --stdin 0"
        raise ValueError(
            f"run: {shlex.join(command)} reads its program from stdin, which {who}: write the program to a file and "
            f"give that as CMD{one}"
        )


def _meeting(placement: Placement, workers: int, servers: int, local: LocalHost) -> dict[str, str]:
    return rendezvous.for_choosing_workers(
        [placement("worker", rank) or local for rank in range(workers)],
        [placement("server", rank) or local for rank in range(servers)],
        local,
    )


def _require_mirrors(settings: Settings, servers: int) -> None:
    if not settings.replicas:
        return
    given = f"run: --replicas {settings.replicas} (GRADWIRE_REPLICAS)"
    if settings.placement == "auto":
        raise ValueError(
            f"{given} with placement auto, which may choose a placement without servers: leave one of the two out"
        )
    if servers < 2:
        raise ValueError(
            f"{given} with {servers} servers: a server is mirrored on another one; start at least 2 (-s 2), or leave "
            "it out"
        )


def _listening_on(placement: Placement, workers: int, servers: int, *settings: Settings) -> set[str]:
    """Names or addresses of the machines on which a job's processes listen; none where it is all in namespaces of this
    one, whose scheduler then listens on the bridge between them."""
    places = [*(("server", rank) for rank in range(servers)), *(("worker", rank) for rank in range(workers))]
    hosts = [placement(role, rank) or LocalHost() for role, rank in places]
    if all(host.namespace for host in hosts):
        return set()
    found = {
        host.address for host in [placement("scheduler", 0) or LocalHost(), *hosts] if not host.namespace
    }
    found |= {each.bind_host for each in settings if each.bind_host is not None}
    if any(each.interface not in (None, "lo") for each in settings):
        found.add(_SOME_ADDRESS)
    return found


def _given_key(settings: Settings, joins: str | None) -> encryption.JobKey | None:
    """The key that the user has given to a job that others can be added to, so that they can have it too."""
    if settings.encrypt == "off" or (joins is None and settings.on_failure == "abort"):
        return None
    # The key of the job that this process itself is of, is no other's.
    text = "" if os.environ.get("GRADWIRE_ROLE") else os.environ.get(encryption.VARIABLE)
    return encryption.parse_job_key(text) if text else None


def _check_membership(settings: Settings, workers: int, restarts: int, joins: str | None) -> None:
    if settings.on_failure == "abort" and (restarts or joins):
        what = f"--restarts {restarts}" if restarts else f"--join {joins}"
        raise ValueError(f"run: {what} needs --on-failure continue")
    if restarts < 0:
        raise ValueError(f"run: --restarts {restarts}: expected 0 or more")
    if joins is not None:
        endpoints.parse(joins)
    elif settings.on_failure == "continue" and settings.min_workers > workers:
        raise ValueError(
            f"run: --min-workers {settings.min_workers} is more than the {workers} workers of the job: lower it, or "
            "raise -n"
        )
