"""The command `gradwire run`: its options, of which launchers.py makes a job."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gradwire import codec_listing
from gradwire.settings import endpoints
from gradwire.settings.units import parse_duration, parse_size
from gradwire.terminal.counts import MOST_PROCESSES
from gradwire.terminal.json_option import JsonOption, write_json
from gradwire.terminal.quantities import checked_by

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradwire.launch.child import Line
    from gradwire.launch.console import Prefixer
    from gradwire.launch.launchers import Request
    from gradwire.timeline.recording import Recording

# horovodrun's spellings of options.
_SPELLINGS = {
    "num-proc": "num-workers",
    "hosts": "hostfile",
    "min-np": "min-workers",
    "min-num-proc": "min-workers",
    "output-filename": "output-dir",
    "timeline-filename": "timeline",
    "network-interfaces": "network-interface",
}
ALIASES = {"token_normalize_func": lambda word: _SPELLINGS.get(word, word)}
"""For the command's context."""
_OF_P3 = {
    "GRADWIRE_PARTITION_BYTES": "256KiB",
    "GRADWIRE_BIGARRAY_BOUND": "65536",
}  # as the store p3 has them
# A worker that stands in a debugger sends heartbeats and nothing else: no wait for it may end the job.
_OF_DEBUG = dict.fromkeys(("GRADWIRE_RENDEZVOUS_TIMEOUT", "GRADWIRE_SLOW_ABORT"), "8760h")
_ROLE_VARIABLE = re.compile(r"([^=:]+)[=:](.*)", re.DOTALL)


# What --help shows together.
_HOSTS = "Hosts"
_CLUSTERS = "Clusters (sge, yarn, kubernetes)"
_VARIABLES = "Variables and settings"
_COMMUNICATION = "Communication"
_FAILURES = "Failures and elastic jobs"
_DEBUGGING = "Output and debugging"


@dataclass(frozen=True)
class RunOptions:
    """The options of `gradwire run`, by the names of its parameters."""

    command: list[str]
    workers: int
    servers: int | None
    launcher: str
    hosts: str | None
    env: list[str] | None
    env_worker: list[str] | None
    env_server: list[str] | None
    copy_to: str | None
    output_dir: Path | None
    timeline: Path | None
    ssh: str
    ssh_port: int | None
    ssh_identity_file: Path | None
    network_interface: str | None
    start_timeout: float | None
    fusion_threshold_mb: float | None
    cycle_time_ms: float | None
    verbose: bool
    p3: bool
    queue: str | None
    cores: int | None
    memory: str | None
    image: str | None
    namespace: str | None
    dry_run: bool
    compression: str | None
    placement: Literal["off", "auto"] | None
    hierarchy: Literal["off", "host"] | None
    encrypt: bool | None
    replicas: int | None
    faults: str | None
    stdin_rank: int | None
    debug_rank: int | None
    grace: str | None
    on_failure: Literal["abort", "continue"] | None
    min_workers: int | None
    restarts: int
    join: str | None
    settings_file: Path | None
    json_file: str | None

    def __post_init__(self) -> None:
        if self.debug_rank is not None and self.stdin_rank is not None:
            raise ValueError(
                f"run: --debug {self.debug_rank} cannot be combined with --stdin {self.stdin_rank}: the worker of "
                "--debug reads stdin; leave --stdin out"
            )
        given = {"--json": self.json_file, "--output-dir": self.output_dir}
        unused = [option for option, value in given.items() if value is not None]
        if self.dry_run and unused:
            raise ValueError(
                f"run: {unused[0]} cannot be combined with --dry-run, which runs nothing: leave one of the two out"
            )

    def variables(self, recorded: Mapping[str, str]) -> dict[str, str]:
        """Returns what all processes are given: by the options, by --env, and by a settings file.

        recorded: what a timeline needs.
        """
        by_flag, given = self._by_flag(), _read_env(self.env or [])
        by_option = {
            "GRADWIRE_COMPRESSION": self.compression,
            "GRADWIRE_HIERARCHY": self.hierarchy,
            "GRADWIRE_PLACEMENT": self.placement,
            "GRADWIRE_ENCRYPT": None if self.encrypt is None else "on" if self.encrypt else "off",
            "GRADWIRE_REPLICAS": None if self.replicas is None else str(self.replicas),
            "GRADWIRE_FAULTS": self.faults,
            "GRADWIRE_GRACE_PERIOD": self.grace,
            "GRADWIRE_ON_FAILURE": "continue" if self.join is not None else self.on_failure,
            "GRADWIRE_MIN_WORKERS": None if self.min_workers is None else str(self.min_workers),
        }
        return _with_settings_file(
            {name: text for name, text in by_flag.items() if name not in _settings_in(given)}
            | given
            | {name: text for name, text in by_option.items() if text is not None}
            | dict(recorded),
            self.settings_file,
        )

    def role_variables(self) -> dict[str, dict[str, str]]:
        """Returns what the workers alone are given, and the servers alone."""
        by_flag = self._by_flag()
        roles = {
            "worker": _read_role_env("worker", self.env_worker or []),
            "server": _read_role_env("server", self.env_server or []),
        }
        for own in roles.values():  # a setting that is empty is as if unset: the name that was given counts
            own |= dict.fromkeys(_settings_in(own) & by_flag.keys() - own.keys(), "")
        return roles

    def _by_flag(self) -> dict[str, str]:
        """Returns the variables that flags of other launchers stand for here. What --env and its like give of them,
        under any name, counts."""
        megabytes, interface = self.fusion_threshold_mb, self.network_interface
        if megabytes is not None and math.isinf(megabytes):
            raise ValueError("run: --fusion-threshold-mb inf: expected a number of MiB, such as 128")
        if interface is not None and "," in interface:
            raise ValueError(
                f"run: --network-interface {interface} names several: expected one, such as eth0, which all hosts have"
            )
        given = {
            "GRADWIRE_INTERFACE": interface,
            "GRADWIRE_RENDEZVOUS_TIMEOUT": None if self.start_timeout is None else f"{self.start_timeout:g}s",
            "HOROVOD_FUSION_THRESHOLD": None if megabytes is None else str(round(megabytes * 2**20)),
            "HOROVOD_CYCLE_TIME": None if self.cycle_time_ms is None else f"{self.cycle_time_ms:g}",
            "GRADWIRE_LOG_LEVEL": "info" if self.verbose else None,
        }
        of_debug = {} if self.debug_rank is None else _OF_DEBUG
        named = {name: text for name, text in given.items() if text is not None}
        return of_debug | named | (_OF_P3 if self.p3 else {})

    @property
    def reads_stdin(self) -> int | None:
        """The worker that reads stdin, if any does."""
        return self.stdin_rank if self.debug_rank is None else self.debug_rank

    def check(self, variables: Mapping[str, str]) -> None:
        """Finds what a job would find later. variables: that all processes are given.

        Raises: ValueError: says which option or setting.
        """
        from gradwire.launch.console import say
        from gradwire.launch.inherited_environment import surroundings
        from gradwire.launch.job import check_names

        around = {**surroundings(), **variables}
        check_names(around.get("GRADWIRE_COMPRESSION") or None, around.get("GRADWIRE_REPLY") or "exact")
        goes_on = around.get("GRADWIRE_ON_FAILURE", "").lower() == "continue"
        if spec := around.get("GRADWIRE_FAULTS", "").strip():
            chooses = around.get("GRADWIRE_PLACEMENT", "").lower() == "auto"
            most_servers = max(self.servers or self.workers, self.workers if chooses else 0)
            _check_faults(spec, None if goes_on else self.workers, most_servers)
            say(f"runs under faults: {spec}")
        if self.min_workers is not None and not goes_on:
            raise ValueError(
                f"run: --min-workers {self.min_workers} needs --on-failure continue: give that too, or leave it out"
            )

    def request(self, recording: Recording | None, show: Prefixer) -> Request:
        """Returns what launchers take.

        Raises: ValueError: says which option or setting is bad.
        """
        from gradwire.launch import launchers

        reads_stdin = self.reads_stdin
        variables = self.variables({} if recording is None else recording.environment)
        self.check(variables)
        return launchers.Request(
            command=self.command,
            workers=self.workers,
            servers=self.servers,
            launcher=self.launcher,
            hosts=self.hosts,
            env=variables,
            role_env=self.role_variables(),
            copy_to=self.copy_to,
            ssh=_read_ssh(self.ssh, self.ssh_port, self.ssh_identity_file),
            restarts=self.restarts,
            joins=self.join,
            queue=self.queue,
            cores=self.cores,
            memory=None if self.memory is None else parse_size(self.memory),
            image=self.image,
            namespace=self.namespace,
            recording=recording,
            stdin_rank=reads_stdin,
            # A file gets whole lines, each once.
            unfinished=show.begin if sys.stdout.isatty() or reads_stdin is not None else None,
        )


def _launchers(incomplete: str) -> list[str]:
    """Lists the launchers that begin so, for shell completion."""
    from gradwire.launch import launchers

    return [row.name for row in launchers.LAUNCHERS if row.name.startswith(incomplete)]


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="CMD...", help="Program and arguments of every worker.")
    ],
    workers: Annotated[
        int,
        typer.Option(
            "-n",
            "-np",
            "--num-workers",
            metavar="N",
            min=1,
            max=MOST_PROCESSES,
            help="Number of workers.",
        ),
    ],
    servers: Annotated[
        int | None,
        typer.Option(
            "-s",
            "--num-servers",
            metavar="N",
            min=0,
            max=MOST_PROCESSES,
            help="Number of servers. Default: one per worker, which end quietly if the script's store needs none; 0 "
            "under mpi, slurm, sge, yarn and kubernetes.",
        ),
    ] = None,
    launcher: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="local starts all processes here. ssh and mpi (mpirun) start them on the hosts of -H. slurm (srun), "
            "sge (qsub), yarn and kubernetes (kubectl) start them where the cluster decides. Default: local.",
            autocompletion=_launchers,
        ),
    ] = "local",
    hosts: Annotated[
        str | None,
        typer.Option(
            "-H",
            "-hostfile",
            "--hostfile",
            metavar="HOSTS",
            help="Hosts as host:slots,host:slots, or a file with one host a line. Default: this machine.",
            rich_help_panel=_HOSTS,
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="K=V",
            help="Environment variable for every process. Repeatable. Default: none.",
            rich_help_panel=_VARIABLES,
        ),
    ] = None,
    env_worker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V",
            help="Environment variable for workers only, as K=V or K:V. Overrides --env. Repeatable. Default: none.",
            rich_help_panel=_VARIABLES,
        ),
    ] = None,
    env_server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V",
            help="Environment variable for servers only, as K=V or K:V. Overrides --env. Repeatable. Default: none.",
            rich_help_panel=_VARIABLES,
        ),
    ] = None,
    copy_to: Annotated[
        str | None,
        typer.Option(
            "--sync-dst-dir",
            metavar="DIR",
            help="Copy the current folder to DIR on every host, and run CMD there. Needs --launcher ssh or mpi. "
            "Default: CMD runs in the current folder, which every host must have.",
            rich_help_panel=_HOSTS,
        ),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write each process's output to DIR as well, as worker-0.stdout. Files of an earlier job are removed "
            "there. Default: the terminal only.",
            rich_help_panel=_DEBUGGING,
        ),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Trace every partition on every rank to FILE, for `gradwire timeline FILE`. Under slurm, sge and "
            "yarn, FILE must lie in a folder that all machines share. Not for kubernetes. Default: no trace.",
            rich_help_panel=_DEBUGGING,
        ),
    ] = None,
    ssh: Annotated[
        str,
        typer.Option(
            "--ssh",
            metavar="CMD",
            help="The ssh program with its options, such as 'ssh -F cluster.conf'. Default: ssh.",
            rich_help_panel=_HOSTS,
        ),
    ] = "ssh",
    ssh_port: Annotated[int | None, typer.Option("-p", "--ssh-port", min=1, max=65535, hidden=True)] = None,
    ssh_identity_file: Annotated[
        Path | None, typer.Option("-i", "--ssh-identity-file", exists=True, dir_okay=False, hidden=True)
    ] = None,
    network_interface: Annotated[str | None, typer.Option(hidden=True)] = None,
    start_timeout: Annotated[float | None, typer.Option(min=0.001, hidden=True)] = None,
    fusion_threshold_mb: Annotated[float | None, typer.Option(min=0, hidden=True)] = None,
    cycle_time_ms: Annotated[float | None, typer.Option(min=0, hidden=True)] = None,
    verbose: Annotated[bool, typer.Option("--verbose", hidden=True)] = False,
    p3: Annotated[bool, typer.Option("--p3", hidden=True)] = False,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Queue of the cluster, under sge (as for qsub -q) and yarn. Default: the cluster's own.",
            rich_help_panel=_CLUSTERS,
        ),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Cores of each worker and server, under yarn and kubernetes. Default: 1 under yarn; under kubernetes "
            "no request.",
            rich_help_panel=_CLUSTERS,
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory of each worker and server, under yarn and kubernetes, such as 4GB. Yarn kills a process that "
            "uses more. Default: 1 GiB under yarn; under kubernetes no limit.",
            rich_help_panel=_CLUSTERS,
            callback=checked_by(parse_size),
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Image of all containers, required under kubernetes. It must contain gradwire and CMD. Default: none.",
            rich_help_panel=_CLUSTERS,
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Namespace of the job under kubernetes. Default: the one that kubectl uses.",
            rich_help_panel=_CLUSTERS,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the manifest and start nothing, under kubernetes. Default: off.",
            rich_help_panel=_CLUSTERS,
        ),
    ] = False,
    compression: Annotated[
        str | None,
        typer.Option(
            metavar="CODEC",
            help="Codec of all gradients, such as 2bit:threshold=auto. Overrides the script's. `gradwire codecs` lists "
            "all codecs. Default: GRADWIRE_COMPRESSION, or the script's own.",
            rich_help_panel=_COMMUNICATION,
            autocompletion=codec_listing.names,
        ),
    ] = None,
    placement: Annotated[
        Literal["off", "auto"] | None,
        typer.Option(
            help="auto: workers measure the link and choose between servers and peers. off: the store's name decides. "
            "Default: GRADWIRE_PLACEMENT, or off.",
            rich_help_panel=_COMMUNICATION,
        ),
    ] = None,
    hierarchy: Annotated[
        Literal["off", "host"] | None,
        typer.Option(
            help="host: the workers of a host sum uncompressed first, and one compressed flow leaves each host. off: "
            "each worker sends its own. Default: GRADWIRE_HIERARCHY, or off.",
            rich_help_panel=_COMMUNICATION,
        ),
    ] = None,
    encrypt: Annotated[
        bool | None,
        typer.Option(
            "--encrypt/--no-encrypt",
            help="Encrypt TCP connections with a key made for this job, and refuse processes without it. Default: "
            "GRADWIRE_ENCRYPT, or on if other machines can reach the job's ports.",
            rich_help_panel=_COMMUNICATION,
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=1,
            help="1: mirror each server on the next one, so that one server may die without losing an update. 0: no "
            "mirrors. Default: GRADWIRE_REPLICAS, or 0.",
            rich_help_panel=_FAILURES,
        ),
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Faults to inject, such as lost frames, slow links or killed processes: see above. Default: none.",
            rich_help_panel=_DEBUGGING,
        ),
    ] = None,
    stdin_rank: Annotated[
        int | None,
        typer.Option(
            "--stdin",
            metavar="RANK",
            min=0,
            help="Worker that reads the stdin of gradwire run. Only with --launcher local. Default: none.",
            rich_help_panel=_DEBUGGING,
        ),
    ] = None,
    debug_rank: Annotated[
        int | None,
        typer.Option(
            "--debug",
            metavar="RANK",
            min=0,
            help="Worker in which breakpoint() and pdb use this terminal. Timeouts are off, so that the others wait. "
            "Ctrl-C ends the job. Only with --launcher local. Default: none.",
            rich_help_panel=_DEBUGGING,
        ),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time in which workers may save after SIGTERM, before they are killed, such as 30s or 2min. "
            "Default: GRADWIRE_GRACE_PERIOD, or 30s.",
            rich_help_panel=_FAILURES,
            callback=checked_by(parse_duration),
        ),
    ] = None,
    on_failure: Annotated[
        Literal["abort", "continue"] | None,
        typer.Option(
            help="abort: the job ends when a worker fails. continue: it goes on without failed workers "
            "(gradwire.elastic). Default: GRADWIRE_ON_FAILURE, or abort.",
            rich_help_panel=_FAILURES,
        ),
    ] = None,
    min_workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Abort when fewer than N workers remain. Needs --on-failure continue. Default: 1.",
            rich_help_panel=_FAILURES,
        ),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Restart failed workers, up to N times in all. Needs --on-failure continue. Default: 0.",
            rich_help_panel=_FAILURES,
        ),
    ] = 0,
    join: Annotated[
        str | None,
        typer.Option(
            metavar="tcp://HOST:PORT",
            help="Add workers to the running elastic job whose scheduler listens there. Default: start a new job.",
            rich_help_panel=_FAILURES,
            callback=checked_by(endpoints.parse),
        ),
    ] = None,
    settings_file: Annotated[
        Path | None,
        typer.Option(
            "--settings",
            metavar="FILE",
            help="File of settings, such as `gradwire tune --json FILE` writes. Environment variables override it. "
            "Default: GRADWIRE_SETTINGS.",
            rich_help_panel=_VARIABLES,
        ),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Start a job: scheduler, servers and N workers that each run CMD.

    Each line of output is shown behind the name of its process. Options of gradwire run end at the first word of CMD.
    If a process fails, the others are ended, and gradwire run returns its exit code. With --on-failure continue, a
    worker's failure is reported, and the exit code is 0 if the remaining workers finish.

    [bold]Signals[/bold]
    Ctrl-C ends everything within 2 s; a second Ctrl-C ends it at once. On SIGTERM or SIGHUP, each worker gets SIGTERM
    and the time of --grace to save. Servers and scheduler run until all workers have ended. SIGUSR1, SIGUSR2 and
    SIGQUIT are passed on to each worker, as sbatch --signal=B:USR1@90 needs. If CMD is a shell script, it must exec
    its program, or the program does not receive the signal.

    [bold]Other hosts[/bold]
    Workers fill the slots of -H in order. Servers take the remaining hosts, or share those of workers. Processes get
    PATH, the variables of --env, and those of gradwire, MXNet, BytePS, Python and thread libraries. Clusters choose
    the machines; sge, yarn and kubernetes cannot be combined with -H.
      slurm        steps of srun; run it inside an allocation (salloc or sbatch)
      sge          array jobs, one of workers and one of servers, on machines that share this folder
      yarn         services, on machines that share this folder, have python3 and can reach this machine
      kubernetes   Jobs whose pods run --image; --dry-run prints them for kubectl create -f

    [bold]Faults[/bold]
    --faults takes items separated by commas. Each node applies them to the data frames that it sends.
      drop=1%, duplicate=1%, reorder=1%    share of frames; corrupt=1% flips a bit
      delay=5ms@10%                        delay that share of frames
      slow=worker:2@10mbit+5ms             limit that node's rate, and add latency
      partition=worker:1+worker:2|server:0@10s+2s
                                           cut the groups off from each other, 10 s after they joined, for 2 s
      kill=worker:1@push:100               kill it at the 100th push that it sends or receives
      seed=7                               which frames are chosen; worker:* means all workers
    Events of kill are start, init, push, reply, pull, checkpoint, blob and leave. Workers also have barrier; the
    scheduler has start, barrier, heartbeat and leave. A replacement of a killed worker is not killed again. Results
    have the bits of a run without faults. Each process reports at its end how many frames it disturbed.

    The options of MXNet's launch.py and of horovodrun are accepted where they have a meaning here. The migration
    guides list them.

    [bold]Examples[/bold]
      gradwire run -n 2 python train.py --lr 0.1
      gradwire run -n 4 --compression 2bit:threshold=auto python -u train.py
      gradwire run -n 4 -s 2 --launcher ssh -H node1:2,node2:2 --sync-dst-dir job python train.py
      gradwire run -n 2 --debug 0 python train.py     (with a breakpoint() in worker 0)
      salloc -n 4 gradwire run -n 4 --launcher slurm python train.py
      gradwire run -n 4 -s 2 --launcher sge --queue gpu.q python train.py
      gradwire run -n 4 -s 2 --launcher kubernetes --image registry/train:1 --memory 8GB python train.py
      gradwire run -n 2 -s 2 --timeline out.json python train.py && gradwire timeline out.json
      gradwire run -n 2 -s 2 --faults seed=7,drop=1% --env GRADWIRE_RETRY_TIMEOUT=100ms python train.py
      gradwire run -n 4 --on-failure continue --min-workers 2 --restarts 3 python train.py
    """
    raise typer.Exit(_run(RunOptions(**locals())))


def _run(options: RunOptions) -> int:
    """Runs the job, or shows what would be started. Returns the exit code."""
    from gradwire.launch import launchers
    from gradwire.launch.console import Prefixer, say
    from gradwire.launch.output_folder import OutputFolder

    recording = None
    if options.timeline is not None:
        recording = launchers.record(options.timeline, options.launcher, options.hosts)
    show = Prefixer(sys.stderr if options.json_file == "-" else sys.stdout, sys.stderr)
    request = options.request(recording, show)
    if options.dry_run:
        sys.stdout.write(f"{launchers.manifest(request)}\n")
        return 0
    with contextlib.ExitStack() as stack:
        folder = options.output_dir
        keep = None if folder is None else stack.enter_context(OutputFolder(folder, say))

        def output(line: Line) -> None:
            show(line)
            if keep is not None:
                keep(line)

        result = launchers.run(request, output, say)
    is_traced = recording is None or recording.finish(say)
    exit_code = result.exit_code or (0 if is_traced else 1)
    record = {
        "exit_code": exit_code,
        "cause": result.cause,
        "wall_seconds": round(result.wall_seconds, 3),
        "failed_role": result.failed_role,
        "failed_rank": result.failed_rank,
        "lost": list(result.lost),
        "restarted": result.restarted,
        "workers": options.workers,
        "servers": request.servers_to_start,
        "command": options.command,
    }
    write_json(record, options.json_file)
    return exit_code


def _read_env(pairs: list[str]) -> dict[str, str]:
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(
                f"run: --env {_without_value(pair)} is not valid: expected NAME=VALUE, such as --env "
                "OMP_NUM_THREADS=1"
            )
        env[name] = value
    return env


def _read_role_env(role: str, pairs: list[str]) -> dict[str, str]:
    env = {}
    for pair in pairs:
        found = _ROLE_VARIABLE.fullmatch(pair)
        if found is None:
            raise ValueError(
                f"run: --env-{role} {_without_value(pair)} is not valid: expected NAME=VALUE or NAME:VALUE, such as "
                f"--env-{role} OMP_NUM_THREADS=1"
            )
        env[found[1]] = found[2]
    return env


def _without_value(pair: str) -> str:
    """A variable as an error shows it: its value may be a secret."""
    return re.sub("([=:]).*", r"\1...", pair, flags=re.DOTALL)


def _settings_in(variables: Mapping[str, str]) -> set[str]:
    """Names of the settings that variables give, each under its own name or another's."""
    from gradwire.settings import definitions as settings

    alone = {name: text for name, text in variables.items() if name != "GRADWIRE_SETTINGS"}
    return {row.definition.variable for row in settings.resolve(alone) if row.origin != "default"}


def _check_faults(spec: str, workers: int | None, servers: int) -> None:
    """workers: None where more may come. servers: as many as there can be, of workers' own too."""
    from gradwire import _core

    try:
        _core.check_faults(spec, workers, servers)
    except ValueError as error:
        raise ValueError(f"run: --{error}") from None


def _with_settings_file(env: dict[str, str], file: Path | None) -> dict[str, str]:
    """Adds what a settings file gives and neither env nor this process's environment does."""
    from gradwire.settings import definitions as settings

    given = {**os.environ, **env}
    path = given.get("GRADWIRE_SETTINGS") if file is None else str(file)
    return env | settings.variables_of_file(path, given) if path else env


def _read_ssh(text: str, port: int | None, identity_file: Path | None) -> tuple[str, ...]:
    expected = "expected a program with its options, such as 'ssh -F cluster.conf'"
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"run: --ssh {text} is not valid ({error}): {expected}") from None
    if not words:
        raise ValueError(f"run: --ssh is empty: {expected}; leave it out for ssh itself")
    if port is not None:
        words += ("-p", str(port))
    return words if identity_file is None else (*words, "-i", str(identity_file))
