"""Runs all processes of a job, watches them, and leaves none behind.

`gradwire run`, `gradwire ab` and `gradwire bench` use `run_job`. It runs in the caller's thread, with one selector over
the children's pipes, their pidfds and this process's signals. It kills by id, never by name.

A job goes through these phases, each with at most one deadline:

    starting -> running -> draining -> (all gone)
        \\__________|___________|____ failing -> stopping -> killing -> (all gone)
         \\_________|___________|______|_ saving __/

failing: a process failed. The others get notice_seconds + 3 s to name it and end.
saving: the launcher and the workers got SIGTERM. Workers get grace_period to save and end; servers and scheduler serve
them meanwhile.
stopping: all remaining processes got SIGTERM.
"""

from __future__ import annotations

import functools
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gradwire.launch.caught_signals import CaughtSignals
from gradwire.launch.child import (
    STREAMS,
    Child,
    Guard,
    Host,
    Line,
    LocalHost,
    NotHandedOnError,
    Stream,
    describe_exit,
    shell_code,
    start,
)
from gradwire.launch.first_failure import FirstFailure
from gradwire.launch.job import Job, Placement, Process, check_names_here, make_job
from gradwire.launch.remote.connection_queue import ConnectionQueue
from gradwire.launch.remote.ssh import GREETING, UNREACHABLE
from gradwire.launch.unfinished_lines import UnfinishedLines

__all__ = ["Host", "JobResult", "Line", "LocalHost", "Placement", "check_job", "run_job", "run_prepared"]

Phase = Literal["starting", "running", "draining", "failing", "saving", "stopping", "killing"]

_ANNOUNCE_SECONDS = 30.0  # in which a cluster, where the scheduler runs in one, makes what it needs
_DRAIN_SECONDS = 5.0  # for servers and the scheduler to end once all workers have
_UNUSED_DRAIN_SECONDS = 0.5  # the same, where nobody asked for servers
_NOTICE_SECONDS = 3.0  # for the others to name a dead rank and end, once they know of it
_QUIET_SECONDS = 2.0  # of waiting for the others, after which it is said for what and for how long
_STOP_SECONDS = 2.0  # between SIGTERM and SIGKILL, but for workers that save
_ENDS_THE_JOB = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# With which schedulers of clusters announce the end of an allocation, and people ask for a checkpoint or a traceback.
_HANDED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
_TIMED_OUT = 124
_LONGEST_WAIT = 3600.0  # one look at the children an hour; the system's own limit is a month


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Attributes:
        exit_code: 0 if no process failed, or if the job went on without those in lost.
        failed_role, failed_rank: the process that failed first; None if none did.
        wall_seconds: duration of the job.
        cause: describes the failure.
        interrupted: the signal that stopped the job, if any.
        lost: descriptions of workers that failed and that the job went on without.
        restarted: number of workers that were restarted.
    """

    exit_code: int
    failed_role: str | None
    failed_rank: int | None
    wall_seconds: float
    cause: str | None = None
    interrupted: signal.Signals | None = None
    lost: tuple[str, ...] = ()  # how workers ended without which the job has gone on
    restarted: int = 0

    def require_success(self, who: str, last_lines: Sequence[str] = ()) -> None:
        """Returns if no process failed.

        Args:
            who: begins the error message.
            last_lines: output that ends the error message.

        Raises: KeyboardInterrupt: a signal stopped the job. RuntimeError: the job failed.
        """
        if self.interrupted is not None:
            raise KeyboardInterrupt
        if self.exit_code != 0:
            raise RuntimeError("\n  | ".join([f"{who}: {self.cause}", *last_lines]))


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
    restarts: int = 0,
    joins: str | None = None,
    role_env: Mapping[str, Mapping[str, str]] | None = None,
    stdin_rank: int | None = None,
    unfinished: Callable[[Line], None] | None = None,
) -> JobResult:
    """Runs command as every worker of a job, with its servers and scheduler, to the end of all of them.

    Args:
        command: program and arguments of a worker.
        workers: number of workers, at least 1.
        servers: number of servers. 0: none, for stores that need none. None: one per worker, which end quietly if
            unused.
        env: variables for all processes, over this process's own. GRADWIRE_* also set the servers' options.
        worker_env: returns further variables for the worker of a rank.
        placement: returns the host of a role ("worker", "server", "scheduler") and rank; None: this machine.
        output: takes each line that a process writes. Default: lines are dropped.
        report: takes the launcher's own messages. Default: they are dropped.
        timeout: seconds after which the job is stopped with exit code 124. Default: no limit.
        restarts: number of failed workers that are restarted, with GRADWIRE_ON_FAILURE=continue. Default: 0.
        joins: scheduler of a running elastic job, to which the workers are added. Nothing else is started then.
        role_env: variables for a role, "worker" or "server", over env.
        stdin_rank: worker on this machine that reads this process's stdin; None: none does.
        unfinished: takes the beginning of an unfinished line, such as a prompt. output still takes the whole line.

    Returns: the first failing process and its exit code (128 + n for signal n). With GRADWIRE_ON_FAILURE=continue, a
        worker's failure counts only if no worker is left and none has finished; then the last one's counts. If such a
        job cannot go on (too few workers, a dead server), the exit code is the server's, or 1, the scheduler's. On
        SIGTERM or SIGHUP (main thread only), workers get SIGTERM and GRADWIRE_GRACE_PERIOD to end; then the others are
        stopped. On SIGINT all are stopped within 2 s, on a second one at once. exit_code is then 128 + the signal.
        SIGUSR1, SIGUSR2 and SIGQUIT are passed on to the workers.

    Raises:
        ValueError: bad counts or a bad setting.
        OSError: a program does not exist or cannot be started.
    """
    job = make_job(
        command, workers, servers, env, worker_env, placement, restarts, joins, role_env, stdin_rank
    )
    if placement is None:
        check_names_here(job)
    return run_prepared(job, output or (lambda _: None), report or (lambda _: None), timeout, unfinished)


def check_job(
    command: Sequence[str], workers: int, servers: int | None, env: Mapping[str, str] | None = None
) -> None:
    """Raises what run_job would raise, before a long series of jobs begins. Arguments and errors: as run_job."""
    check_names_here(make_job(command, workers, servers, env))


def run_prepared(
    job: Job,
    output: Callable[[Line], None],
    report: Callable[[str], None],
    timeout: float | None = None,
    unfinished: Callable[[Line], None] | None = None,
) -> JobResult:
    """Runs a job that was made already. Otherwise as run_job."""
    return _Run(job, output, report, timeout, unfinished).to_the_end()


class _Run:
    """The running processes of one job and the loop that watches them."""

    def __init__(
        self,
        job: Job,
        output: Callable[[Line], None],
        report: Callable[[str], None],
        timeout: float | None,
        unfinished: Callable[[Line], None] | None,
    ) -> None:
        self.job = job
        self._output = output
        self._report = report
        self.unfinished = UnfinishedLines(unfinished)
        self.failure = FirstFailure()
        self.selector = selectors.DefaultSelector()
        self.guard = Guard()
        self.alive: list[Child] = []
        self.connections = ConnectionQueue()
        self.phase: Phase = "starting"
        self.deadline: float | None = None  # of the phase
        self.patience = 0.0  # seconds that a failing job waits beyond the deadline
        self.started_at = time.monotonic()
        self.end = None if timeout is None else self.started_at + timeout  # of the whole job
        self.announce_fd: int | None = None
        self.announcement = b""
        self.endpoint = ""  # of the scheduler
        self.lost: list[tuple[Child, str, int]] = []  # workers that failed, how, and their exit codes
        self.restarted = 0
        self.is_over = False  # a worker has come to the end, or the scheduler, which all have left
        self.is_done = False  # a worker has come to the end

    def output(self, line: Line) -> None:
        self.failure.take_line(line)
        self._output(line)

    def report(self, text: str) -> None:
        self.failure.note_message()
        self._report(text)

    def to_the_end(self) -> JobResult:
        caught = CaughtSignals((*_ENDS_THE_JOB, *_HANDED_ON))
        self.selector.register(caught, selectors.EVENT_READ, lambda: self._on_signal(caught.take()))
        try:
            if self.job.joins is None:
                self._start_scheduler()
            else:
                self._start_all(self.job.joins)
            while self.alive:
                self._step()
        finally:
            self._kill_all()
            caught.restore()
            if self.announce_fd is not None:
                os.close(self.announce_fd)
            self.selector.close()
            self.guard.close()
        if last_line := self.failure.last_line():
            self._report(last_line)
        wall, failure = time.monotonic() - self.started_at, self.failure
        role, rank = (failure.child.role, failure.child.rank) if failure.child else (None, None)
        lost = tuple(words for _, words, _ in self.lost)
        return JobResult(
            failure.exit_code, role, rank, wall, failure.cause, failure.interrupted, lost, self.restarted
        )

    def _step(self) -> None:
        """Waits for one batch of events, or for the next deadline, and handles it."""
        times = [at for at in (self.deadline, self.end, self.unfinished.next_due) if at is not None]
        patience = min([at - time.monotonic() for at in times], default=_LONGEST_WAIT)
        events = self.selector.select(min(max(0.0, patience), _LONGEST_WAIT))
        for key, _ in events:
            if self.selector.get_map().get(key.fd) is key:  # else an event just before removed it
                key.data()
        now = time.monotonic()
        self.unfinished.show_due(now)
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
            program, seconds = self.job.server_program, f"{_ANNOUNCE_SECONDS:g} s"
            self._fail(None, f"the scheduler ({program}) did not say within {seconds} where it listens", 1)
            self._stop()
        elif self.phase == "draining":
            if self.job.servers_asked_for:
                names = ", ".join(child.name for child in self.alive)
                self.report(f"all workers have ended and {names} still wait; stopping them")
            self._stop()
        elif self.phase == "failing" and self.patience:
            self._say_who_is_awaited()
        elif self.phase == "failing":
            self._give_up()
        elif self.phase == "saving":
            self._kill_late(self._workers(), f"{self.job.settings.grace_period:g} s (--grace)")
            self._stop()
        elif self.phase == "stopping":
            self._kill_late(self.alive, f"{_STOP_SECONDS:g} s")
            self._set_phase("killing")

    def _set_phase(self, phase: Phase, seconds: float | None = None, then: float = 0.0) -> None:
        """then: further seconds, after a message that says who is awaited."""
        self.phase = phase
        self.patience = then
        self.deadline = None if seconds is None else time.monotonic() + seconds

    # Starting

    def _start_scheduler(self) -> None:
        self.announce_fd, writer = os.pipe()
        try:
            self._spawn(self.job.scheduler(writer), (writer,))
        finally:
            os.close(writer)
        self.selector.register(self.announce_fd, selectors.EVENT_READ, self._on_announcement)
        self._set_phase("starting", _ANNOUNCE_SECONDS)

    def _on_announcement(self) -> None:
        assert self.announce_fd is not None
        data = os.read(self.announce_fd, 4096)
        self.announcement += data
        if data and b"\n" not in data:
            return
        self.selector.unregister(self.announce_fd)
        os.close(self.announce_fd)
        self.announce_fd = None
        endpoint = self.announcement.decode("ascii", "replace").strip()
        if (
            self.phase != "starting" or not endpoint
        ):  # without an endpoint it is about to end, and says why itself
            return
        self._start_all(endpoint)

    def _start_all(self, endpoint: str) -> None:
        """Starts all but the scheduler. If the job joins another, starts its new workers only."""
        self.endpoint = endpoint
        self._set_phase("running")
        if advice := self.job.advice(endpoint):
            self.report(advice)
        processes = self.job.processes(endpoint)
        for process in processes:
            if self.job.joins is None or process.role == "worker":
                self._spawn(process)

    def _spawn(self, process: Process, pass_fds: tuple[int, ...] = ()) -> None:
        if self.connections.holds_back(process):
            return
        try:
            child = start(
                process.host,
                process.role,
                process.rank,
                process.command,
                process.environment,
                pass_fds,
                process.make_splitter,
                process.deliver,
                process.stdin,
            )
        except OSError as error:
            who = process.role if process.rank is None else f"{process.role} {process.rank}"
            what = f"{process.command[0]}, the program of {who},"
            raise OSError(f"run: {what} cannot be started ({error.strerror or error}): correct it") from error
        self.guard.watch(child.pid)
        self.alive.append(child)
        self.connections.begin(child, process)
        self.selector.register(child.pidfd, selectors.EVENT_READ, functools.partial(self._on_end, child))
        for stream in STREAMS:
            on_output = functools.partial(self._on_output, child, stream)
            self.selector.register(child.pipe(stream), selectors.EVENT_READ, on_output)

    def _start_waiting(self) -> None:
        """Starts waiting processes whose host can take one more. The others keep waiting, in the same order."""
        for process in self.connections.take_waiting():
            if self.phase == "running":
                self._spawn(process)

    def _has_another_try(self, child: Child, code: int) -> bool:
        """Retries ssh once if it failed before it reached the host: sshd may have been busy."""
        process = self.connections.end(child)
        if process is None or code != UNREACHABLE or self.phase != "running":
            return False
        if not self.connections.retry(process):
            return False
        self.report(f"{child.name} (pid {child.pid}): ssh has not reached its host; trying once more")
        return True

    # What happens to a child

    def _on_output(self, child: Child, stream: Stream) -> None:
        lines = child.read(stream)
        if lines is None:
            self.selector.unregister(child.pipe(stream))
            lines = child.close_stream(stream)
        for line in lines:
            self._on_line(child, line)
        if not self.connections.is_connecting(child):
            self.unfinished.note_read(child, stream, time.monotonic())

    def _on_line(self, child: Child, line: Line) -> None:
        if self.connections.take_greeting(child, line):
            line = replace(line, text=line.text.removesuffix(GREETING))
            self._start_waiting()
            if not line.text:
                return
        self.output(line)

    def _on_end(self, child: Child) -> None:
        code = self._bury(child)
        is_tried_again = self._has_another_try(child, code)
        self._start_waiting()
        if not is_tried_again:
            self._judge(child, code)

    def _bury(self, child: Child) -> int:
        """Collects an ended child, kills what it left behind, and passes on its last lines."""
        child.signal_all(signal.SIGKILL)
        self.alive.remove(child)
        self.selector.unregister(child.pidfd)
        self.unfinished.forget(child)
        for stream in STREAMS:
            if not child.pipe(stream).closed:
                self.selector.unregister(child.pipe(stream))
        child.drain(functools.partial(self._on_line, child))
        self.guard.forget(child.pid)
        return child.reap()

    def _judge(self, child: Child, code: int) -> None:
        """Decides what the end of a child means for the job."""
        words = f"{child.name} (pid {child.pid}) {describe_exit(code)}"
        if self.phase in ("stopping", "killing"):
            return
        if self.phase == "saving":
            if child.role == "worker" and code not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
                self.report(f"{words} after SIGTERM")
            if not self._has_workers():
                self._stop()
            return
        self.is_done = self.is_done or (code == 0 and child.role == "worker")
        self.is_over = self.is_done or self.is_over or (code == 0 and child.role == "scheduler")
        fails = code != 0 and not (self.phase == "running" and self._goes_on_without(child, words, code))
        if fails and self._is_mirrored(child):
            if self.phase == "running":
                # Whether the job goes on without it is the scheduler's to say, which then ends with it.
                self.report(f"{words}; another server mirrors it, so the job goes on")
            else:  # one that was taken for dead may wake only now, and ends as it is told to
                self.report(f"{words}; all workers have ended and no longer need it")
        elif fails and self.phase == "failing":
            self.report(words)
            self.failure.reconsider(child, words, shell_code(code), hears_late=self.job.hears_late)
        elif fails:
            hint = self._look_at(child) if self.phase == "starting" else ""
            self._fail(child, f"{words}{hint}", shell_code(code))
            patience = self.job.notice_seconds + _NOTICE_SECONDS
            self._set_phase("failing", _QUIET_SECONDS, patience - _QUIET_SECONDS)
        elif self.phase == "starting":
            self._fail(child, f"{words} before it said where it listens{self._look_at(child)}", 1)
        elif self.phase == "running" and not self._has_workers():
            wanted = self.job.servers_asked_for
            self._set_phase("draining", _DRAIN_SECONDS if wanted else _UNUSED_DRAIN_SECONDS)
        if self.phase != "failing":
            return
        awaited = [other for other in self.alive if self._is_awaited(other)]
        if self.alive and not awaited:
            self._set_phase("failing", _UNUSED_DRAIN_SECONDS)
        elif awaited and all(other.is_stopped() for other in awaited):
            self._give_up()

    def _look_at(self, child: Child) -> str:
        """Returns a hint on the scheduler's program, if it ended before it announced its address."""
        if child.role != "scheduler":
            return ""
        return (
            f"; it is {self.job.server_program}: `gradwire doctor` tries it, and says what is wrong with it"
        )

    def _is_mirrored(self, child: Child) -> bool:
        """Returns True for a server whose end the job survives, or would have survived while workers needed it."""
        serves = child.role == "server" and self.job.settings.replicas > 0
        return serves and self.phase in ("running", "draining")

    def _goes_on_without(self, child: Child, words: str, code: int) -> bool:
        """Records a worker's failure that does not end the job, and restarts the worker if restarts are left.

        If no worker is left, the job ends. The scheduler says why, if the workers had joined.
        """
        if not self.job.goes_on or child.role != "worker":
            return False
        self.lost.append((child, words, shell_code(code)))
        if self.is_done:
            self.report(f"{words}; other workers have finished the job")
            return True
        if not self._has_workers():
            return False
        if self.is_over:
            self.report(f"{words}; all have left the job")
            return True
        if self.job.joins is None and self.restarted < self.job.restarts:
            self.restarted += 1
            count = f"restart {self.restarted} of {self.job.restarts}"
            self.report(f"{words}; starting another in its place ({count})")
            self._spawn(self.job.replacement(child.rank or 0, self.endpoint))
            return True
        self.report(f"{words}; the job goes on without it")
        return True

    def _workers(self) -> list[Child]:
        return [child for child in self.alive if child.role == "worker"]

    def _has_workers(self) -> bool:
        return bool(self._workers()) or any(process.role == "worker" for process in self.connections.waiting)

    def _is_awaited(self, child: Child) -> bool:
        """Returns True if a child must end by itself when the job is over. Unused servers may never have joined."""
        return child.role == "worker" or self.job.servers_asked_for

    def _fail(self, child: Child | None, cause: str, exit_code: int) -> None:
        self._report(cause)
        self.failure.begin(child, cause, exit_code)

    # Ending

    def _say_who_is_awaited(self) -> None:
        names = ", ".join(child.name for child in self.alive if self._is_awaited(child))
        self.report(f"waiting {self.patience:.0f} s more for {names} to end")
        self._set_phase("failing", self.patience)

    def _give_up(self) -> None:
        """Stops the processes that did not end after a failure."""
        for child in self.alive:
            if not self._is_awaited(child):
                continue
            why = "it is stopped (SIGSTOP)" if child.is_stopped() else "it still runs"
            self.report(f"{child.name} (pid {child.pid}) did not end by itself, {why}; ending it")
        self._stop()

    def _stop(self) -> None:
        """Asks all that are left to end."""
        self._set_phase("stopping", _STOP_SECONDS)
        for child in self.alive:
            child.ask_to_end()

    def _save(self) -> None:
        """Asks workers to end and lets them save, for which they may need servers and scheduler."""
        if not self.job.lets_workers_save:
            self.report("this launcher gives workers no time to save (--grace); ending them")
            self._stop()
            return
        grace = self.job.settings.grace_period
        self._set_phase("saving", grace)
        for child in self._workers():  # first of all: the signal may have taken away what shows the report
            child.hand_on(signal.SIGTERM)
        self.report(f"asked all workers to end by SIGTERM; they have {grace:g} s (--grace) to save")

    def _kill_late(self, children: Sequence[Child], after: str) -> None:
        for child in children:
            self.report(f"{child.name} (pid {child.pid}) has not ended within {after} of SIGTERM: killing it")
            child.signal_all(signal.SIGKILL)

    def _kill_all(self) -> None:
        """Kills all remaining processes, whatever interrupted the loop."""
        for child in self.alive:
            child.signal_all(signal.SIGKILL)
        for child in self.alive:
            self.guard.forget(child.pid)
            child.reap()

    def _on_signal(self, given: signal.Signals) -> None:
        if given in _HANDED_ON:
            self._hand_on(given)
        elif self.phase in ("stopping", "killing"):
            if given == signal.SIGINT:  # asked twice: no more waiting
                self._set_phase("killing")
                for child in self.alive:
                    child.signal_all(signal.SIGKILL)
        elif given == signal.SIGINT or not self._has_workers():
            self.failure.interrupt(given)
            self._stop()
        elif self.phase != "saving":
            self.failure.interrupt(given)
            self._save()

    def _hand_on(self, given: signal.Signals) -> None:
        if not self._has_workers():
            self.report(f"{given.name}: there is no worker to pass it on to")
        for child in self._workers():
            try:
                child.hand_on(given)
            except NotHandedOnError as error:
                self.report(f"{given.name}: {error}")
