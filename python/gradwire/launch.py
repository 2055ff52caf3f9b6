"""Starts every process of a job on hosts of this machine, watches them, and leaves none behind.

`run_job` is what `gradwire run`, `gradwire ab` and `gradwire bench` stand on. It runs in the caller's thread, with one
selector over the children's pipes, their pidfds and this process's signals; it kills by process id, never by name.

A job goes through these phases, each with at most one deadline:

    starting -> running -> draining -> (all gone)
        \\__________|___________|____ failing -> stopping -> killing -> (all gone)

failing: a process failed, and the others get liveness_timeout + 3 s to notice and name it. stopping: SIGTERM was sent.
"""

from __future__ import annotations

import functools
import os
import selectors
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gradwire import settings as settings_module
from gradwire.child import (
    STREAMS,
    Child,
    Guard,
    Host,
    Line,
    LocalHost,
    Stream,
    describe_exit,
    shell_code,
    start,
)
from gradwire.settings import Settings

__all__ = ["Host", "JobResult", "Line", "LocalHost", "Placement", "find_server_program", "run_job"]

Phase = Literal["starting", "running", "draining", "failing", "stopping", "killing"]
Placement = Callable[[str, int], Host | None]

_ANNOUNCE_SECONDS = 10.0
_DRAIN_SECONDS = 5.0  # for servers and the scheduler to end once all workers have
_UNUSED_DRAIN_SECONDS = 0.5  # the same, where nobody asked for servers
_STOP_SECONDS = 2.0  # between SIGTERM and SIGKILL
_NO_TIMEOUT = 7 * 86400.0  # roll call of servers that may never be wanted
_TIMED_OUT = 124
# What says who a process is in a job; a job started from inside another must not inherit it.
_IDENTITY = (
    *("GRADWIRE_ROLE", "GRADWIRE_RANK", "GRADWIRE_NUM_WORKERS", "GRADWIRE_NUM_SERVERS", "GRADWIRE_SCHEDULER"),
    *(
        "DMLC_ROLE",
        "DMLC_RANK",
        "DMLC_NUM_WORKER",
        "DMLC_NUM_SERVER",
        "DMLC_PS_ROOT_URI",
        "DMLC_PS_ROOT_PORT",
    ),
    *("DMLC_WORKER_ID", "DMLC_SERVER_ID", "DMLC_TASK_ID"),
)


@dataclass(frozen=True)
class JobResult:
    """How a job ended. Without a failure exit_code is 0; interrupted holds the signal that stopped it, if one did."""

    exit_code: int
    failed_role: str | None
    failed_rank: int | None
    wall_seconds: float
    cause: str | None = None
    interrupted: signal.Signals | None = None


def find_server_program(settings: Settings) -> str:
    """Returns the path of gradwire-server.

    Raises: FileNotFoundError: it is nowhere; says where it was looked for.
    """
    if settings.server_program is not None:
        found = shutil.which(settings.server_program)
        if found is None:
            raise FileNotFoundError(
                f"run: GRADWIRE_SERVER_PROGRAM={settings.server_program} is not a program: correct or unset it"
            )
        return found
    folders = [Path(sys.argv[0]).resolve().parent, Path(sys.executable).parent]
    for folder in folders:
        if found := shutil.which("gradwire-server", path=str(folder)):
            return found
    if found := shutil.which("gradwire-server"):
        return found
    places = ", ".join(dict.fromkeys(str(folder) for folder in folders))
    raise FileNotFoundError(
        f"run: no program gradwire-server in {places} or on PATH: install gradwire, or set GRADWIRE_SERVER_PROGRAM"
    )


def run_job(
    command: Sequence[str],
    workers: int,
    servers: int | None = None,
    *,
    env: Mapping[str, str] | None = None,
    worker_env: Callable[[int], Mapping[str, str]] | None = None,
    placement: Placement | None = None,
    output: Callable[[Line], None] | None = None,
    report: Callable[[str], None] | None = None,
    timeout: float | None = None,
) -> JobResult:
    """Runs command as every worker of a job, with its servers and scheduler, to the end of all of them.

    Args:
        command: program and arguments of a worker.
        workers: how many, at least 1.
        servers: how many; 0: none and no scheduler; None: one per worker, ended without fuss where none is used.
        env: variables for all processes, over this process's own. GRADWIRE_* in it also reach the servers' flags.
        worker_env: further variables for the worker of a rank.
        placement: where role ("worker", "server", "scheduler") and rank runs; None, or returning None: here.
        output: takes each line that a process writes; unset: lines are dropped.
        report: takes what the launcher itself has to say; unset: nothing is said.
        timeout: seconds after which the job is stopped with exit code 124.

    Returns: the first failing process's own exit code (128 + n for signal n) and name. On SIGINT, SIGTERM or SIGHUP
        (main thread only) everything is stopped at once, and exit_code is 128 + the signal.

    Raises:
        ValueError: bad counts or a bad setting.
        OSError: a program cannot be started.
    """
    if workers < 1 or (servers is not None and servers < 0):
        raise ValueError(
            f"run: {workers} workers and {servers} servers: expected at least 1 worker and 0 servers"
        )
    if not command:
        raise ValueError("run: no command: give the program that every worker runs")
    base = {name: value for name, value in {**os.environ, **(env or {})}.items() if name not in _IDENTITY}
    if shutil.which(command[0], path=base.get("PATH")) is None:
        raise FileNotFoundError(
            f"run: {command[0]} is not a program: expected a file that can be run, or one on PATH"
        )
    job = _Job(command, workers, servers, base, placement or (lambda role, rank: None))
    if worker_env is not None:
        job.worker_env = worker_env
    job.output = output or (lambda line: None)
    job.report = report or (lambda text: None)
    if timeout is not None:
        job.end = job.started_at + timeout
    return job.run()


class _Job:
    """The processes of one job and the loop that watches them."""

    def __init__(
        self,
        command: Sequence[str],
        workers: int,
        servers: int | None,
        base: dict[str, str],
        placement: Placement,
    ) -> None:
        self.command = list(command)
        self.workers = workers
        self.servers = workers if servers is None else servers
        self.servers_asked_for = servers is not None
        self.base = base
        self.settings = settings_module.read(base)
        self.server_program = find_server_program(self.settings) if self.servers else ""
        self.placement = placement
        self.worker_env: Callable[[int], Mapping[str, str]] = lambda rank: {}
        self.output: Callable[[Line], None]
        self.report: Callable[[str], None]
        self.local = LocalHost()
        self.selector = selectors.DefaultSelector()
        self.alive: list[Child] = []
        self.phase: Phase = "starting"
        self.deadline: float | None = None  # of the phase
        self.end: float | None = None  # of the whole job
        self.started_at = time.monotonic()
        self.failed: Child | None = None
        self.cause: str | None = None
        self.exit_code = 0
        self.interrupted: signal.Signals | None = None
        self.announce_fd: int | None = None
        self.announcement = b""

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> JobResult:
        self.guard = Guard()
        restore = self._catch_signals()
        try:
            if self.servers:
                self._start_scheduler()
            else:
                self._start_workers("")
            while self.alive:
                self._step()
        finally:
            self._kill_all()
            restore()
            if self.announce_fd is not None:
                os.close(self.announce_fd)
            self.selector.close()
            self.guard.close()
        wall = time.monotonic() - self.started_at
        role, rank = (self.failed.role, self.failed.rank) if self.failed else (None, None)
        return JobResult(self.exit_code, role, rank, wall, self.cause, self.interrupted)

    def _step(self) -> None:
        """Waits for one batch of events, or for the next deadline, and handles it."""
        times = [at for at in (self.deadline, self.end) if at is not None]
        events = self.selector.select(max(0.0, min(times) - time.monotonic()) if times else None)
        for key, _ in events:
            if self.selector.get_map().get(key.fd) is key:  # else an event just before removed it
                key.data()
        now = time.monotonic()
        if self.end is not None and now >= self.end:
            self.end = None
            if self.phase in ("starting", "running", "draining"):
                seconds = f"{now - self.started_at:.0f} s"
                self._fail(None, f"the job was not done after {seconds} and was stopped", _TIMED_OUT)
                self._stop()
        if self.deadline is not None and now >= self.deadline:
            self._on_deadline()

    def _on_deadline(self) -> None:
        self.deadline = None
        if self.phase == "starting":
            seconds = f"{_ANNOUNCE_SECONDS:g} s"
            self._fail(
                None,
                f"the scheduler ({self.server_program}) did not say where it listens within {seconds}",
                1,
            )
            self._stop()
        elif self.phase == "draining":
            if self.servers_asked_for:
                names = ", ".join(child.name for child in self.alive)
                self.report(f"all workers have ended and left {names} waiting; stopping")
            self._stop()
        elif self.phase == "failing":
            for child in self.alive:
                self.report(
                    f"{child.name} (pid {child.pid}) did not end by itself ({child.state()}); stopping it"
                )
            self._stop()
        elif self.phase == "stopping":
            self._set_phase("killing")
            for child in self.alive:
                child.signal_group(signal.SIGKILL)

    def _set_phase(self, phase: Phase, seconds: float | None = None) -> None:
        self.phase = phase
        self.deadline = None if seconds is None else time.monotonic() + seconds

    # -- starting ------------------------------------------------------------------------------------------------

    def _start_scheduler(self) -> None:
        host = self._host("scheduler", 0)
        reader, writer = os.pipe()
        try:
            address = settings_module.endpoint(host.address, 0)
            flags = ["--announce", str(writer)]
            self._spawn(
                host, "scheduler", None, self._server_command("scheduler", address) + flags, (writer,)
            )
        finally:
            os.close(writer)
        self.announce_fd = reader
        self.selector.register(reader, selectors.EVENT_READ, lambda: self._on_announcement(reader))
        self._set_phase("starting", _ANNOUNCE_SECONDS)

    def _on_announcement(self, reader: int) -> None:
        data = os.read(reader, 4096)
        self.announcement += data
        if data and b"\n" not in data:
            return
        self.selector.unregister(reader)
        os.close(reader)
        self.announce_fd = None
        address = self.announcement.decode("ascii", "replace").strip()
        if (
            self.phase != "starting" or not address
        ):  # without an address it is about to end, and says why itself
            return
        for rank in range(self.servers):
            host = self._host("server", rank)
            command = [*self._server_command("server", address), "--rank", str(rank)]
            command += self._bind_flags(host)
            self._spawn(host, "server", rank, command)
        self._start_workers(address)

    def _start_workers(self, scheduler: str) -> None:
        self._set_phase("running")
        cores = len(os.sched_getaffinity(0))
        for rank in range(self.workers):
            env = {
                "PYTHONUNBUFFERED": "1",  # or the lines of a Python worker would come in blocks
                "OMP_NUM_THREADS": str(
                    max(1, cores // self.workers)
                ),  # or N workers would start N x cores threads
            }
            env |= self.base | self._identity("worker", rank, scheduler) | dict(self.worker_env(rank))
            self._spawn(self._host("worker", rank), "worker", rank, self.command, env=env)

    def _server_command(self, role: str, scheduler: str) -> list[str]:
        rendezvous = self.settings.rendezvous_timeout if self.servers_asked_for else _NO_TIMEOUT
        return [
            *(self.server_program, "--role", role, "--scheduler", scheduler),
            *("--workers", str(self.workers), "--servers", str(self.servers)),
            *("--rendezvous-timeout", f"{rendezvous:g}"),
            *("--liveness-timeout", f"{self.settings.liveness_timeout:g}"),
            *("--log-level", self.settings.log_level),
        ]

    def _bind_flags(self, host: Host) -> list[str]:
        identity = self._host_identity(host)
        flags = ["--host-id", identity] if identity else []
        if self.settings.bind_host is None and self.settings.interface is not None and host is self.local:
            return [*flags, "--interface", self.settings.interface]
        placed = host is not self.local or self.settings.bind_host is None
        return [*flags, "--bind-host", host.address if placed else str(self.settings.bind_host)]

    def _host_identity(self, host: Host) -> str | None:
        """A placed process is on a host of its own: what shares this machine must not pass for the same host."""
        return self.settings.host_id if host is self.local else host.address

    def _identity(self, role: str, rank: int, scheduler: str) -> dict[str, str]:
        """Says in GRADWIRE_* and in DMLC_* who a process is."""
        env = {
            **{"GRADWIRE_ROLE": role, "DMLC_ROLE": role},
            **{"GRADWIRE_RANK": str(rank), "DMLC_RANK": str(rank), f"DMLC_{role.upper()}_ID": str(rank)},
            **{"GRADWIRE_NUM_WORKERS": str(self.workers), "DMLC_NUM_WORKER": str(self.workers)},
            **{"GRADWIRE_NUM_SERVERS": str(self.servers), "DMLC_NUM_SERVER": str(self.servers)},
        }
        if scheduler:
            host, _, port = scheduler.removeprefix("tcp://").rpartition(":")
            env |= {
                "GRADWIRE_SCHEDULER": scheduler,
                "DMLC_PS_ROOT_URI": host.strip("[]"),
                "DMLC_PS_ROOT_PORT": port,
            }
        if identity := self._host_identity(self._host(role, rank)):
            env["GRADWIRE_HOST_ID"] = identity
        return env

    def _host(self, role: str, rank: int) -> Host:
        return self.placement(role, rank) or self.local

    def _spawn(
        self,
        host: Host,
        role: str,
        rank: int | None,
        command: Sequence[str],
        pass_fds: tuple[int, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        child = start(host, role, rank, command, self.base if env is None else env, pass_fds)
        self.guard.watch(child.pid)
        self.alive.append(child)
        self.selector.register(child.pidfd, selectors.EVENT_READ, functools.partial(self._on_end, child))
        for stream in STREAMS:
            self.selector.register(
                child.pipe(stream), selectors.EVENT_READ, functools.partial(self._on_output, child, stream)
            )

    # -- what happens to a child ---------------------------------------------------------------------------------

    def _on_output(self, child: Child, stream: Stream) -> None:
        lines = child.read(stream)
        if lines is None:
            self.selector.unregister(child.pipe(stream))
            lines = child.close_stream(stream)
        for line in lines:
            self.output(line)

    def _on_end(self, child: Child) -> None:
        self._judge(child, self._bury(child))

    def _bury(self, child: Child) -> int:
        """Collects an ended child, ends what it started and left behind, and hands over its last lines."""
        child.signal_group(signal.SIGKILL)
        self.guard.forget(child.pid)
        self.alive.remove(child)
        self.selector.unregister(child.pidfd)
        for stream in STREAMS:
            if not child.pipe(stream).closed:
                self.selector.unregister(child.pipe(stream))
        child.drain(self.output)
        return child.reap()

    def _judge(self, child: Child, code: int) -> None:
        """Decides what the end of a child means for the job."""
        if self.phase in ("stopping", "killing"):
            return
        if code != 0:
            words = f"{child.name} (pid {child.pid}) {describe_exit(code)}"
            if self.phase == "failing":
                self.report(words)
            else:
                self._fail(child, words, shell_code(code))
                self._set_phase("failing", self.settings.liveness_timeout + 3.0)
        elif self.phase == "starting":
            self._fail(child, f"{child.name} (pid {child.pid}) ended before the job began", 1)
            self._stop()
        elif self.phase == "running" and not any(other.role == "worker" for other in self.alive):
            self._set_phase("draining", _DRAIN_SECONDS if self.servers_asked_for else _UNUSED_DRAIN_SECONDS)

    def _fail(self, child: Child | None, cause: str, exit_code: int) -> None:
        self.failed, self.cause, self.exit_code = child, cause, exit_code
        self.report(cause)

    # -- ending --------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Asks all that are left to end. A stopped process must go on to hear it."""
        self._set_phase("stopping", _STOP_SECONDS)
        for child in self.alive:
            child.signal_group(signal.SIGTERM)
            child.signal_group(signal.SIGCONT)

    def _kill_all(self) -> None:
        for child in list(self.alive):
            child.signal_group(signal.SIGKILL)
        for child in list(self.alive):
            child.reap()
            self.guard.forget(child.pid)

    def _on_signal(self, number: int) -> None:
        if self.phase == "stopping":  # asked twice: no more waiting
            self.deadline = time.monotonic()
            return
        if self.phase == "killing":
            return
        self.interrupted = signal.Signals(number)
        self.cause = f"stopped by {self.interrupted.name}"
        self.exit_code = 128 + number
        self._stop()

    def _catch_signals(self) -> Callable[[], None]:
        """Turns signals into events of the loop. Returns what undoes it."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        numbers = [
            number for number in caught if signal.getsignal(number) != signal.SIG_IGN
        ]  # as under nohup
        before = {
            n: signal.signal(n, lambda number, frame: os.write(writer, bytes([number]))) for n in numbers
        }
        self.selector.register(reader, selectors.EVENT_READ, lambda: self._on_signal(os.read(reader, 1)[0]))

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)

        return restore
