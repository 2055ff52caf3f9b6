"""One process of a job: started in its own session, read line by line, ended with everything it started.

Threading: a Child belongs to the thread that made it. Nothing here blocks except `Child.reap`, which is for a
process that has ended or was killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gradwire.launch import process_session
from gradwire.launch.process_session import dying_with_owner, signal_session

Stream = Literal["stdout", "stderr"]
STREAMS: tuple[Stream, ...] = ("stdout", "stderr")

_LONGEST_LINE = 64 * 1024
_PROGRESS_INTERVAL = 1.0  # seconds between two states of a progress bar (text that ends in \r)


class Host(Protocol):
    """A place where processes run: this machine, or one of netlab's namespaces."""

    @property
    def address(self) -> str:
        """The address under which the other hosts of the job reach this one."""
        ...

    @property
    def namespace(self) -> str | None:
        """Names the network namespace that makes this a host of its own; None: the machine itself."""
        ...

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Starts command here; options are those of subprocess.Popen."""
        ...


@dataclass(frozen=True)
class LocalHost:
    """This machine, reached over loopback, or under the address given."""

    address: str = "127.0.0.1"
    namespace: str | None = None

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **options)


@dataclass(frozen=True)
class Line:
    """One line of output, without its line end, and who wrote it."""

    role: str
    rank: int | None
    stream: Stream
    text: str


class LineSplitter:
    """Cuts a stream into lines. A progress bar, rewritten after each \\r, yields one line a second."""

    def __init__(self) -> None:
        self._pending = b""
        self._is_bar = False  # what is pending is a state of a progress bar
        self._shown_at = -_PROGRESS_INTERVAL

    def feed(self, data: bytes, now: float) -> list[str]:
        """Takes what was read (b"" at the end of the stream) and returns the lines it completes."""
        if not data:
            rest, self._pending = self._pending, b""
            return [_decode(rest)] if rest else []
        *whole, self._pending = (self._pending + data).replace(b"\r\n", b"\n").split(b"\n")
        lines = [_decode(line.rpartition(b"\r")[2] or line) for line in whole]
        self._is_bar = self._is_bar and not whole
        before, bar, after = self._pending[:-1].rpartition(b"\r")  # a \r at the end may be half of a \r\n
        if bar:
            self._is_bar = True
            self._pending = after + self._pending[-1:]
            state = before.rpartition(b"\r")[2]
            if state and now - self._shown_at >= _PROGRESS_INTERVAL:
                self._shown_at = now
                lines.append(_decode(state))
        if len(self._pending) > _LONGEST_LINE:
            lines.append(_decode(self._pending))
            self._pending = b""
        return lines

    @property
    def unfinished(self) -> str:
        """What has been read of a line that is not whole; "" for a progress bar, whose states feed() returns."""
        return "" if self._is_bar else _decode(self._pending)


def _decode(line: bytes) -> str:
    return line.strip(b"\r").decode("utf-8", "replace")


class Splitter(Protocol):
    """Cuts what a process writes to one stream into lines.

    Attributes: unfinished: the beginning of a line, such as a prompt, whose end has not come; None: there is none, or
        nobody can tell whose it is.
    """

    @property
    def unfinished(self) -> Line | None: ...

    def feed(self, data: bytes, now: float) -> list[Line]:
        """Takes what was read (b"" at the end of the stream) and returns the lines that it completes."""
        ...


class OwnLines:
    """The Splitter of a process that writes for itself alone."""

    def __init__(self, role: str, rank: int | None, stream: Stream) -> None:
        self._writer = (role, rank, stream)
        self._splitter = LineSplitter()

    def feed(self, data: bytes, now: float) -> list[Line]:
        return [Line(*self._writer, text) for text in self._splitter.feed(data, now)]

    @property
    def unfinished(self) -> Line | None:
        text = self._splitter.unfinished
        return Line(*self._writer, text) if text else None


MakeSplitter = Callable[[str, int | None, Stream], Splitter]
Deliver = Callable[[int, signal.Signals], None]
"""Hands a signal on to the program, or the programs, that a process with a pid runs or stands for."""


class NotHandedOnError(RuntimeError):
    """A signal cannot be passed on to a worker; says why."""


class Guard:
    """Kills the processes of a job when the launcher dies, even by SIGKILL.

    It is a tiny process that waits for its pipe to close. PR_SET_PDEATHSIG alone would miss the descendants of a job's
    processes.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", process_session.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def watch(self, session: int) -> None:
        self._tell(f"+{session}\n")

    def forget(self, session: int) -> None:
        self._tell(f"-{session}\n")

    def _tell(self, text: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # somebody ended the guard; the job itself goes on
            self._process.stdin.write(text.encode())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@dataclass(eq=False)
class Child:
    """A running process of the job."""

    role: str
    rank: int | None
    process: subprocess.Popen[bytes]
    pidfd: int
    splitters: Mapping[Stream, Splitter]
    deliver: Deliver

    @property
    def pid(self) -> int:
        """Id of the process, and of its session."""
        return self.process.pid

    @property
    def name(self) -> str:
        return self.role if self.rank is None else f"{self.role} {self.rank}"

    def pipe(self, stream: Stream) -> Any:
        return self.process.stdout if stream == "stdout" else self.process.stderr

    def signal_all(self, number: signal.Signals) -> None:
        """Signals the process and its descendants. Only before `reap`, while the id still belongs to it."""
        signal_session(self.pid, number)

    def ask_to_end(self) -> None:
        """Asks the process and its descendants to end.

        On another host, the end of its stdin does so, because a signal to ssh does not reach it. A stopped process must
        be continued to receive SIGTERM.
        """
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
            return
        self.signal_all(signal.SIGTERM)
        self.signal_all(signal.SIGCONT)

    def hand_on(self, number: signal.Signals) -> None:
        """Sends a signal to the program only, not to its descendants, which it may need to save: a loader's processes.

        On another host, the signal is a line of its stdin.

        Raises: NotHandedOnError: the launcher of the process cannot deliver it.
        """
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.write(b"%d\n" % number)
            return
        self.deliver(self.pid, number)
        if number == signal.SIGTERM:  # a stopped process must be continued to hear it
            self.signal_all(signal.SIGCONT)

    def read(self, stream: Stream) -> list[Line] | None:
        """Reads once. Returns the lines this completes, or None when the stream is empty or has ended."""
        try:
            data = os.read(self.pipe(stream).fileno(), 1 << 16)
        except BlockingIOError:
            return None
        return self.splitters[stream].feed(data, time.monotonic()) if data else None

    def close_stream(self, stream: Stream) -> list[Line]:
        """Closes a pipe. Returns the last line, if it had no line end."""
        self.pipe(stream).close()
        return self.splitters[stream].feed(b"", time.monotonic())

    def drain(self, output: Callable[[Line], None]) -> None:
        """Passes on what an ended process left in its pipes, and closes them."""
        for stream in STREAMS:
            if self.pipe(stream).closed:
                continue
            while (lines := self.read(stream)) is not None:
                for line in lines:
                    output(line)
            for line in self.close_stream(stream):
                output(line)

    def reap(self) -> int:
        """Collects the exit code of a process that has ended: negative for a signal, as Popen has it."""
        os.close(self.pidfd)
        return self.process.wait()

    def is_stopped(self) -> bool:
        """Returns True if a signal (SIGSTOP, a debugger) stopped the process, which then never ends by itself."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="utf-8", errors="replace") as file:
                return file.read().rpartition(")")[2].split()[0] in "tT"
        except (OSError, IndexError):
            return False


def start(
    host: Host,
    role: str,
    rank: int | None,
    command: Sequence[str],
    env: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    make_splitter: MakeSplitter = OwnLines,
    deliver: Deliver = os.kill,
    stdin: int = subprocess.DEVNULL,
) -> Child:
    """Starts command on host. stdin: as for subprocess.Popen; on another host it is the launcher's own pipe.

    Raises: OSError: the program is not there or cannot be run.
    """
    process = host.popen(
        list(command),
        env=dict(env),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        pass_fds=tuple(pass_fds),
        preexec_fn=dying_with_owner(),
        bufsize=0,
    )
    splitters = {stream: make_splitter(role, rank, stream) for stream in STREAMS}
    child = Child(role, rank, process, os.pidfd_open(process.pid), splitters, deliver)
    for stream in STREAMS:
        os.set_blocking(child.pipe(stream).fileno(), False)
    return child


def describe_exit(returncode: int) -> str:
    """Describes Popen's return code in words."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


def shell_code(returncode: int) -> int:
    """Maps Popen's return code to a shell's: 128 + n for signal n."""
    return 128 - returncode if returncode < 0 else returncode
