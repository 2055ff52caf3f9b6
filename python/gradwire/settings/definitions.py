"""Every setting that is read from the environment: one GRADWIRE_* name each, and its aliases.

A setting that the environment does not give may stand in the file that GRADWIRE_SETTINGS names (file.py). `read()`
returns typed `Settings`. `resolve()` returns every value with its origin, errors included, for `gradwire doctor`.
`unknown_variables()` finds misspelt GRADWIRE_* names. Nothing below python/ reads the environment: values are passed
down as arguments.

To add a setting, add one field to `Settings`.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gradwire.settings import endpoints, metrics_targets
from gradwire.settings import file as settings_file
from gradwire.settings.encryption import JobKey, parse_job_key
from gradwire.settings.launch_environment import (
    meeting_beside_torch,
    meeting_of_one_host,
    meeting_of_one_machine,
    meeting_of_srun,
)
from gradwire.settings.suggestions import nearest
from gradwire.settings.units import parse_duration, parse_size

Role = Literal["worker", "server", "scheduler"]
LogLevel = Literal["error", "warning", "info", "debug"]

PREFIX = "GRADWIRE_"
LARGEST = 2**63 - 1  # of whole numbers: what the C++ core counts with
_MOST_RANKS = 2**31 - 1  # it numbers ranks in 32 bits


@dataclass(frozen=True)
class Alias:
    """Another variable, or several read together, that may give a setting.

    Attributes:
        translate: turns the variables' texts into the text of the GRADWIRE_ variable; None: not given.
        unless: a variable of another launcher. If it is set, that launcher started the process, and this alias is
            ignored.
    """

    variables: tuple[str, ...]
    translate: Callable[..., str | None] = lambda text: text
    roles: tuple[str, ...] = ("worker", "server", "scheduler")
    unless: str | None = None


@dataclass(frozen=True)
class Definition:
    """A setting without its value."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    help: str
    aliases: tuple[Alias, ...]

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


@dataclass(frozen=True)
class Resolved:
    """A setting's value in this process, and the variable or file that gave it ("default" if none did)."""

    definition: Definition
    value: Any
    origin: str
    error: str | None = None


def _setting(parse: Callable[[str], Any], default: Any, help: str, *aliases: str | Alias) -> Any:
    rows = tuple(Alias((alias,)) if isinstance(alias, str) else alias for alias in aliases)
    return dataclasses.field(default=default, metadata={"parse": parse, "help": help, "aliases": rows})


def _text(text: str) -> str:
    return text


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"{text!r} is not valid: expected one of {', '.join(words)}")
        return text.lower()

    return parse


def _integer(least: int, unit: str = "", most: int = LARGEST) -> Callable[[str], int]:

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise ValueError(f"{text!r} is not valid: expected a whole number{unit}, {least} to {most}")
        return value

    return parse


def _positive(parse: Callable[[str], Any], least: str) -> Callable[[str], Any]:
    def checked(text: str) -> Any:
        value = parse(text)
        if value < parse(least):
            raise ValueError(f"{text!r} is too small: expected {least} or more")
        return value

    return checked


def _first(text: str, *others: str) -> str:
    """Translates variables that count only if all of them are set."""
    return text


def _ps_verbose(text: str) -> str | None:
    return {"0": None, "1": "info"}.get(text, "debug")


def _ps_heartbeat_timeout(text: str) -> str | None:
    return None if text == "0" else text  # ps-lite's 0 is "never"; a dead peer is always noticed here


@dataclass(frozen=True)
class Settings:
    """Typed values. Durations are seconds, sizes are bytes."""

    role: Role = _setting(  # noqa: RUF009 (it makes a dataclasses.field)
        _one_of("worker", "server", "scheduler"),
        "worker",
        "role of this process in the job: worker, server or scheduler",
        "DMLC_ROLE",
    )
    rank: int | None = _setting(
        _integer(0, most=_MOST_RANKS),
        None,
        "rank of this process among those of its role, from 0. Default: the order of arrival",
        "DMLC_RANK",
        Alias(("DMLC_WORKER_ID",), roles=("worker",)),
        Alias(("DMLC_SERVER_ID",), roles=("server",)),
        Alias(("DMLC_TASK_ID",), roles=("worker", "server")),
        Alias(("RANK", "WORLD_SIZE"), _first, roles=("worker",)),
        Alias(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), _first, roles=("worker",)),
        Alias(("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"), _first, roles=("worker",)),
    )
    num_workers: int = _setting(
        _integer(1, most=_MOST_RANKS),
        1,
        "number of workers in the job",
        "DMLC_NUM_WORKER",
        Alias(("WORLD_SIZE", "RANK"), _first, roles=("worker",)),
        Alias(("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), _first, roles=("worker",)),
        Alias(("SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_ID"), _first, roles=("worker",)),
    )
    num_servers: int = _setting(
        _integer(0, most=_MOST_RANKS), 0, "number of servers in the job", "DMLC_NUM_SERVER"
    )
    scheduler: str | None = _setting(
        endpoints.parse,
        None,
        "address of the scheduler: tcp://host:port. Default: the job has none",
        Alias(("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"), endpoints.written),
    )
    master: str | None = _setting(
        endpoints.parse,
        None,
        "address on which rank 0 of an all-reduce store serves as the scheduler: tcp://host:port, the same on all "
        "ranks. Default: under torchrun, or with torch's process group, a free port that ranks find through "
        "torch's store; else MASTER_ADDR at a port derived from MASTER_PORT; under mpirun on one host, and under "
        "srun, a port derived from the job's id",
        Alias(("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE"), meeting_of_one_machine),
        Alias(("MASTER_ADDR", "MASTER_PORT"), meeting_beside_torch),
        Alias(
            ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"),
            meeting_of_one_host,
            roles=("worker",),
        ),
        Alias(
            ("SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID"),
            meeting_of_srun,
            roles=("worker",),
            unless="OMPI_COMM_WORLD_SIZE",
        ),
    )
    interface: str | None = _setting(
        _text,
        None,
        "network interface on which servers listen, and rank 0 where it serves as the scheduler, such as eth0. "
        "Default: that of the address by which other hosts reach this one",
        "DMLC_INTERFACE",
    )
    bind_host: str | None = _setting(
        _text,
        None,
        "host name or address on which servers listen, and rank 0 where it serves as the scheduler; * means all "
        "interfaces. Overrides GRADWIRE_INTERFACE. Default: the address by which other hosts reach this one",
        "DMLC_NODE_HOST",
    )
    host_id: str | None = _setting(
        _text,
        None,
        "identity of this host. Ranks with the same identity may share memory. Default: the host name",
    )
    hierarchy: Literal["off", "host"] = _setting(
        _one_of("off", "host"),
        "off",
        "host: the workers of a host sum uncompressed first, and one compressed flow leaves each host; off: each "
        "worker sends its own gradients",
    )
    placement: Literal["off", "auto"] = _setting(
        _one_of("off", "auto"),
        "off",
        "auto: workers measure the link and choose between servers, peers and a library that sums; off: the "
        "store's name decides",
    )
    payload_bytes: int = _setting(
        _positive(parse_size, "1"),
        100_000_000,
        "compressed bytes that a worker sends in a round, from which GRADWIRE_PLACEMENT=auto chooses",
    )
    server_hosts: Literal["beside", "apart"] = _setting(
        _one_of("beside", "apart"),
        "beside",
        "beside: servers run on the workers' hosts; apart: on hosts without workers. GRADWIRE_PLACEMENT=auto uses "
        "it; `gradwire run` sets it",
    )
    compression: str | None = _setting(
        _text,
        None,
        "codec that overrides the script's, such as 2bit:threshold=auto,reply=2bit, or auto:budget=0.3 points; "
        "`gradwire codecs` lists all codecs. Default: the script's own",
    )
    result: str | None = _setting(
        _text,
        None,
        "file to which rank 0 writes the script's result; `gradwire ab` sets it. Default: no file",
    )
    step_profile: str | None = _setting(
        _text,
        None,
        "file to which the layers' times are written, while every store is `local`; `gradwire plan -- CMD` sets "
        "it. Default: no profile",
    )
    step_times: str | None = _setting(
        _text,
        None,
        "folder to which every worker writes the times of its steps; `gradwire tune` sets it. Default: no times",
    )
    timed_steps: int = _setting(
        _integer(1), 30, "steps of a PyTorch optimizer after which GRADWIRE_STEP_TIMES ends the script"
    )
    timeline: str | None = _setting(
        _text,
        None,
        "folder to which every process writes a trace of its partitions, for `gradwire timeline FOLDER`; "
        "`gradwire run --timeline` sets it. Default: no trace",
    )
    seed: int | None = _setting(
        _integer(0), None, "random seed for the script; `gradwire ab` sets it. Default: none"
    )
    overlap_step: Literal["off", "on"] = _setting(
        _one_of("off", "on"),
        "off",
        "on: gradwire.torch's optimizers update each parameter when its sum arrives, while the next forward pass "
        "begins; off: backward() waits for all sums",
    )
    log_level: LogLevel = _setting(  # noqa: RUF009 (it makes a dataclasses.field)
        _one_of("error", "warning", "info", "debug"),
        "warning",
        "what is logged to stderr: error, warning, info (members that join and leave) or debug (every message)",
        Alias(("PS_VERBOSE",), _ps_verbose),
    )
    log_format: Literal["text", "json"] = _setting(
        _one_of("text", "json"),
        "text",
        "format of the log: text for people, or json with one object a line for programs",
    )
    rendezvous_timeout: float = _setting(
        _positive(parse_duration, "1ms"), 60.0, "how long a rank waits for all ranks to join"
    )
    liveness_timeout: float = _setting(
        _positive(parse_duration, "1ms"),
        20.0,
        "a peer without a heartbeat for this long counts as dead; a peer whose connection closed counts as dead "
        "within 2 s",
        Alias(("PS_HEARTBEAT_TIMEOUT",), _ps_heartbeat_timeout),
    )
    on_failure: Literal["abort", "continue"] = _setting(
        _one_of("abort", "continue"),
        "abort",
        "abort: the job ends on all ranks when one dies; continue: it goes on without workers that die, and "
        "admits new ones (gradwire.elastic)",
    )
    min_workers: int = _setting(
        _integer(1, most=_MOST_RANKS),
        1,
        "abort when fewer workers remain; used with GRADWIRE_ON_FAILURE=continue",
    )
    regroup_timeout: float = _setting(
        _positive(parse_duration, "1ms"),
        30.0,
        "how long the surviving workers wait for a worker without a heartbeat when they form a new generation; "
        "used with GRADWIRE_ON_FAILURE=continue",
    )
    grace_period: float = _setting(
        parse_duration,
        30.0,
        "how long workers may save after `gradwire run` received SIGTERM, before they are killed",
    )
    slow_warning: float = _setting(
        _positive(parse_duration, "1ms"), 60.0, "log a warning when a round takes longer than this"
    )
    slow_abort: float = _setting(
        _positive(parse_duration, "1ms"), 1800.0, "fail when a round takes longer than this"
    )
    retry_timeout: float = _setting(
        _positive(parse_duration, "1ms"),
        10.0,
        "resend a request that was not acknowledged for this long, further times after up to 8 times as long",
    )
    partition_bytes: int = _setting(
        _positive(parse_size, "4KiB"),
        2**20,
        "tensors are cut into partitions of this many fp32 bytes",
        "BYTEPS_PARTITION_BYTES",
    )
    bigarray_bound: int = _setting(
        _integer(1, " of elements"),
        131_072,
        "arrays with at least this many elements are sharded over all servers",
        "MXNET_KVSTORE_BIGARRAY_BOUND",
    )
    fusion_bytes: int = _setting(
        parse_size, 256 * 2**10, "small tensors are sent together, up to this many fp32 bytes; 0: never"
    )
    credit_bytes: int = _setting(
        _positive(parse_size, "1"),
        256 * 2**10,
        "encoded bytes that may be in the send queue of one connection at a time; further partitions wait in "
        "order of priority",
    )
    push_ahead_bytes: int = _setting(
        parse_size,
        256 * 2**20,
        "memory of a process, in bytes, for pushed gradients whose round cannot begin because earlier rounds of "
        "their keys wait for other workers. A push beyond it blocks. Tables of rows have as much again",
    )
    ipc: Literal["auto", "off"] = _setting(
        _one_of("auto", "off"),
        "auto",
        "auto: workers reach servers on the same host by a local socket instead of TCP; off: always by TCP",
    )
    checksum: Literal["auto", "always", "off"] = _setting(
        _one_of("auto", "always", "off"),
        "auto",
        "checksums of payloads: always; off; auto: for all but dense payloads over local sockets",
    )
    encrypt: Literal["auto", "on", "off"] = _setting(
        _one_of("auto", "on", "off"),
        "auto",
        "on: encrypt TCP connections and admit only processes with the job's key; off: do not; auto: if the job "
        "has a key, which `gradwire run` makes when other machines can reach the job's ports",
    )
    job_key: JobKey | None = _setting(  # noqa: RUF009 (it makes a dataclasses.field)
        parse_job_key,
        None,
        "the secret of an encrypted job, the same in all its processes; `gradwire run` sets it, `gradwire key` "
        "makes one. Default: none",
    )
    faults: str | None = _setting(
        _text,
        None,
        "faults to inject for tests, such as seed=7,drop=1%,corrupt=1%,kill=worker:1@push:100; `gradwire run "
        "--faults` sets it. Default: none",
    )
    residual_dtype: Literal["float32", "bfloat16", "none"] = _setting(
        _one_of("float32", "bfloat16", "none"),
        "float32",
        "dtype in which a worker keeps what codecs have not sent yet (residuals); bfloat16 halves that memory. It "
        "suits codecs of four bits and more, such as int8; with fewer, gradients that stay below 1/512 of an element's "
        "residual are never sent. none: nothing is kept, and what a codec leaves out is lost; not for 2bit, 1bit, topk "
        "and randomk. Residuals of sparse tables and servers stay float32",
    )
    code_sums: Literal["auto", "gather", "integers"] = _setting(
        _one_of("auto", "gather", "integers"),
        "auto",
        "how MPI or NCCL sums 2bit codes: gather: gather them; integers: add them as integers; auto: whichever "
        "moves fewer bytes",
    )
    device: int | None = _setting(
        _integer(0),
        None,
        "number of the GPU on which NCCL sums for this worker. Default: local rank modulo the number of GPUs here",
    )
    local_rank: int | None = _setting(
        _integer(0, most=_MOST_RANKS),
        None,
        "rank of this worker among those of its host, from 0. Default: its rank",
        Alias(("LOCAL_RANK",), roles=("worker",)),
        Alias(("OMPI_COMM_WORLD_LOCAL_RANK",), roles=("worker",)),
        Alias(("SLURM_LOCALID", "SLURM_STEP_ID"), _first, roles=("worker",)),
    )
    nccl_share_gpu: Literal["off", "on"] = _setting(
        _one_of("off", "on"),
        "off",
        "on: several NCCL ranks may share one GPU, as tests on a machine with one GPU need. It gives each process "
        "a host id of its own (NCCL_HOSTID), so that NCCL's traffic goes over the network stack",
    )
    streams: int = _setting(_integer(1, most=64), 1, "connections between a worker and a server")
    codec_threads: int = _setting(
        _integer(0, most=1024),
        0,
        "threads that encode and decode in a worker; 0: chosen from the number of cores",
    )
    server_threads: int = _setting(
        _integer(0, most=1024), 0, "threads that sum in a server; 0: the server chooses"
    )
    replicas: int = _setting(
        _integer(0, most=1),
        0,
        "1: each server is mirrored on the next one, so that one server may die without losing an update; needs "
        "at least 2 servers; 0: no mirrors",
    )
    staleness_bound: int | None = _setting(
        _integer(0),
        None,
        "steps that a worker of dist_async may be ahead of the slowest before it waits. Default: no bound",
    )
    reply: str = _setting(
        _text, "exact", "how servers send sums: exact, fp32 or the codec's own name, such as 2bit"
    )
    server_program: str | None = _setting(
        _text,
        None,
        "path of the gradwire-server program. Default: the one beside the gradwire command, or on PATH",
    )
    metrics: str | None = _setting(
        metrics_targets.checked,
        None,
        "where each worker writes its metrics: prometheus:9400 (a port for each worker of a host: 9400 plus the local "
        "rank), textfile:FOLDER, tensorboard:FOLDER, opentelemetry; several separated by commas. Default: nowhere",
    )
    metrics_interval: float = _setting(
        _positive(parse_duration, "100ms"), 5.0, "time between two samples of GRADWIRE_METRICS"
    )
    settings: str | None = _setting(
        _text,
        None,
        "file of settings, such as `gradwire tune --json FILE` writes. Environment variables override it. "
        "Default: no file",
    )

    @property
    def is_in_a_job(self) -> bool:
        """Whether a setting gives the address of a job's rendezvous."""
        return self.scheduler is not None or self.master is not None

    def __post_init__(self) -> None:
        count = {"worker": self.num_workers, "server": self.num_servers}.get(self.role)
        if self.rank is not None and count is not None and self.rank >= count > 0:
            raise ValueError(
                f"settings: no rank {self.rank} among {count} {self.role}s: expected 0 to {count - 1}; "
                f"correct GRADWIRE_RANK or GRADWIRE_NUM_{self.role.upper()}S"
            )


DEFINITIONS: tuple[Definition, ...] = tuple(
    Definition(
        field.name, field.metadata["parse"], field.default, field.metadata["help"], field.metadata["aliases"]
    )
    for field in dataclasses.fields(Settings)
)


@dataclass(frozen=True)
class _File:
    """The settings of a file, by name; empty if there is no file or it cannot be used."""

    path: str = ""
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)


def _candidates(
    definition: Definition, environ: Mapping[str, str], role: str, file: _File
) -> list[tuple[str, str]]:
    """Lists (origin, text) for one setting; the first counts. Empty variables count as unset."""
    found: list[tuple[str, str]] = []
    if own := environ.get(definition.variable):
        found.append((definition.variable, own))
    for alias in definition.aliases:
        if alias.unless is not None and environ.get(alias.unless):
            continue
        texts = [environ.get(variable, "") for variable in alias.variables]
        if role in alias.roles and all(texts) and (text := alias.translate(*texts)) is not None:
            found.append((" and ".join(alias.variables), text))
    if definition.name in file.texts:
        found.append((file.path, file.texts[definition.name]))
    return found


def _resolve_one(definition: Definition, environ: Mapping[str, str], role: str, file: _File) -> Resolved:
    candidates = _candidates(definition, environ, role, file)
    if not candidates:
        return Resolved(definition, definition.default, "default")
    origin, text = candidates[0]
    try:
        return Resolved(definition, definition.parse(text), origin)
    except ValueError as error:
        given = "" if origin == definition.variable else f" ({origin})"
        return Resolved(
            definition, definition.default, origin, f"settings: {definition.variable}{given}: {error}"
        )


def resolve(environ: Mapping[str, str] | None = None) -> list[Resolved]:
    """Returns every setting with value and origin. A bad one has its default and the text of the error."""
    environ = os.environ if environ is None else environ
    role = _resolve_one(DEFINITIONS[0], environ, "worker", _File()).value
    file, fault = _File(), None
    if path := environ.get(PREFIX + "SETTINGS"):
        try:
            file = _load(path)
        except ValueError as error:
            fault = f"settings: {error}"
    rows = [_resolve_one(definition, environ, role, file) for definition in DEFINITIONS]
    at_fault = "settings" if fault is not None else None
    return [dataclasses.replace(row, error=fault) if row.definition.name == at_fault else row for row in rows]


def _load(path: str) -> _File:
    return _File(path, settings_file.load(path, [definition.name for definition in DEFINITIONS]))


def variables_of_file(path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns a settings file as variables for a job's processes, which then need no file. Settings that environ gives,
    under any name, are left out: the environment overrides the file.

    Raises: ValueError: it is not a settings file, or a value in it is not valid.
    """
    named = {**environ, PREFIX + "SETTINGS": path}
    read(named)
    texts = _load(path).texts
    given = {row.definition.variable: row for row in resolve(named) if row.origin == path}
    return {name: texts[row.definition.name] for name, row in given.items()} | {PREFIX + "SETTINGS": ""}


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """Reads all settings.

    Raises: ValueError: names the first bad variable, its value and what was expected.
    """
    rows = resolve(environ)
    for row in rows:
        if row.error is not None:
            raise ValueError(row.error)
    return Settings(**{row.definition.name: row.value for row in rows})


def is_given(name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Returns True if a setting's own variable or the settings file gives it, not only another program's variable."""
    row = next(row for row in resolve(environ) if row.definition.name == name)
    aliases = [" and ".join(alias.variables) for alias in row.definition.aliases]
    return row.origin not in ("default", *aliases)


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Describes every GRADWIRE_* variable that is no setting, with the nearest valid name."""
    environ = os.environ if environ is None else environ
    valid = [definition.variable.removeprefix(PREFIX) for definition in DEFINITIONS]
    texts = []
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable.removeprefix(PREFIX) not in valid:
            near = nearest(variable.removeprefix(PREFIX), valid)
            meant = f": did you mean {PREFIX}{near}?" if near else "; `gradwire doctor` lists all settings"
            texts.append(f"{variable} is set, but is not a setting{meant}")
    return texts


_warned: set[str] = set()  # of variables, in this process


def warn_unknown_variables(environ: Mapping[str, str] | None = None) -> None:
    """Warns, once per process and name, about GRADWIRE_* variables that have no effect."""
    for text in unknown_variables(environ):
        if text not in _warned:
            _warned.add(text)
            warnings.warn(text, stacklevel=3)
