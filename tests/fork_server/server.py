"""Imports PyTorch once, and forks for each program of a test that wants it.

    python tests/fork_server/server.py SOCKET

`import torch` and the first optimizer cost three seconds of a core, which is more than most of these programs do; a
fork costs some hundredths. sitecustomize.py, in the process that a test has started, asks for one. Here the child
takes over that process's descriptors, folder, environment, network and mount namespaces, limits, priority and cores,
and runs the program as __main__. It has a session and a pid of its own. numpy is imported too. Of gradwire there is
what `import torch` brings (gradwire.torch_backend), so a program imports the rest with the environment that it has.

The server ends when its standard input does, and its children with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import types
from dataclasses import dataclass
from typing import Any

PR_SET_PDEATHSIG = 1
READ_AT_START = (
    *("PYTHON", "LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "CUDA_"),
    *(
        "TORCH_DEVICE_BACKEND_AUTOLOAD",
        "TORCH_LOGS",
        "TORCH_COMPILE",
        "TORCH_TRACE",
        "TORCHDYNAMO_",
        "TORCHINDUCTOR_",
    ),
)
"""How variables begin that libraries or the interpreter read when they are loaded: a program that sets one of them to
something else is not served."""
TAKEN_UP = {"PYTHONPATH", "PYTHONUNBUFFERED"}
NAMESPACES = ("net", "mnt", "uts", "ipc")
MOST_DESCRIPTORS = 250


class NotServedError(Exception):
    """A program has to be started as any other. Says why."""


@dataclass
class Started:
    """A child, and the connection of the process that it runs for."""

    pid: int
    pidfd: int
    connection: socket.socket


def otherwise(environment: dict[str, str]) -> list[str]:
    """Returns the variables of an environment that this process would have had to know at its start."""
    return [
        f"{name}={value}"
        for name, value in environment.items()
        if name.startswith(READ_AT_START) and name not in TAKEN_UP and os.environ.get(name) != value
    ]


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, descriptors, _, _ = socket.recv_fds(connection, 8, MOST_DESCRIPTORS)
    size, body = int.from_bytes(head, "little"), b""
    while len(body) < size:
        more = connection.recv(size - len(body))
        if not more:
            raise NotServedError("who asked has gone")
        body += more
    return json.loads(body), descriptors


def check(request: dict[str, Any], asked_by: int) -> None:
    if others := otherwise(request["environment"]):
        raise NotServedError(f"variables {others}")
    proc = f"/proc/{asked_by}"
    if os.stat(proc).st_uid != os.getuid() or os.readlink(f"{proc}/root") != "/":
        raise NotServedError("another user, or another root folder")
    for namespace in ("pid", "user", "cgroup"):
        if os.readlink(f"{proc}/ns/{namespace}") != os.readlink(f"/proc/self/ns/{namespace}"):
            raise NotServedError(f"another {namespace} namespace")


def become(request: dict[str, Any], asked_by: int, received: list[int]) -> None:
    """Takes over what a process has inherited, as far as a program can see it."""
    libc = ctypes.CDLL(None, use_errno=True)
    proc = f"/proc/{asked_by}"
    for namespace in NAMESPACES:
        if os.readlink(f"{proc}/ns/{namespace}") != os.readlink(f"/proc/self/ns/{namespace}"):
            entry = os.open(f"{proc}/ns/{namespace}", os.O_RDONLY)
            if libc.setns(entry, 0) != 0:
                raise NotServedError(f"setns: {os.strerror(ctypes.get_errno())}")
            os.close(entry)
    os.chdir(request["folder"])
    for limit in (getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")):
        with contextlib.suppress(OSError, ValueError):  # it cannot be raised
            resource.setrlimit(limit, resource.prlimit(asked_by, limit))
    os.sched_setaffinity(0, os.sched_getaffinity(asked_by))
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, asked_by))
    with open(f"{proc}/status") as status:
        os.umask(next(int(line.split()[1], 8) for line in status if line.startswith("Umask:")))

    os.environ.clear()
    os.environ.update(request["environment"])
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 700) for fd in received]
    for fd in [*received, 0, 1, 2]:
        with contextlib.suppress(OSError):
            os.close(fd)
    for fd, wanted in zip(high, request["descriptors"], strict=True):
        os.dup2(fd, wanted, inheritable=True)
        os.close(fd)
    for number in request["ignored"]:
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])


def open_standard_streams(unbuffered: bool) -> None:
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        errors = "backslashreplace" if descriptor == 2 else "surrogateescape"
        stream = None
        with contextlib.suppress(OSError):  # it was started without this one
            stream = open(descriptor, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
            if mode == "w":
                lines = descriptor == 2 or stream.isatty()
                stream.reconfigure(line_buffering=lines, write_through=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


class Server:
    """Accepts, forks, and tells who asked how each child has ended."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(128)
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(0, select.POLLIN | select.POLLHUP)
        self._by_pidfd: dict[int, Started] = {}
        self._by_connection: dict[int, Started] = {}

    def serve(self) -> dict[str, Any]:
        """Ends the process when standard input does. In a child it returns what the child shall run."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == 0 and not os.read(0, 1):
                    os._exit(0)
                elif descriptor == self._listener.fileno():
                    connection, _ = self._listener.accept()
                    pid = os.fork()
                    if pid == 0:
                        self._close()
                        return run_for(connection)
                    self._remember(Started(pid, os.pidfd_open(pid), connection))
                elif started := self._by_pidfd.pop(descriptor, None):
                    self._end(started)
                elif started := self._by_connection.pop(descriptor, None):
                    self._poll.unregister(descriptor)
                    kill(started.pid)  # who asked has died

    def _close(self) -> None:
        for started in self._by_pidfd.values():
            started.connection.close()
            os.close(started.pidfd)
        self._listener.close()

    def _remember(self, started: Started) -> None:
        self._by_pidfd[started.pidfd] = started
        self._by_connection[started.connection.fileno()] = started
        self._poll.register(started.pidfd, select.POLLIN)
        self._poll.register(started.connection, select.POLLRDHUP)

    def _end(self, started: Started) -> None:
        _, status = os.waitpid(started.pid, 0)
        with contextlib.suppress(OSError):
            started.connection.sendall(f"status {status}\n".encode())
        self._poll.unregister(started.pidfd)
        os.close(started.pidfd)
        if self._by_connection.pop(started.connection.fileno(), None):
            self._poll.unregister(started.connection)
        started.connection.close()


def kill(pid: int) -> None:
    """Kills a child and what it has started, as far as that stayed in its process group."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            send(pid, signal.SIGKILL)


def run_for(connection: socket.socket) -> dict[str, Any]:
    """In a child: takes over what who asks has, and returns what to run. Ends the child where it cannot serve."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    asked_by = int.from_bytes(credentials[:4], "little")
    try:
        request, received = receive(connection)
        check(request, asked_by)
        become(request, asked_by, received)
    except (NotServedError, OSError) as error:
        if log := os.environ.get("TEST_FORK_SERVER_LOG"):
            with open(log, "a") as file:
                file.write(f"{error!r}\n")
        connection.sendall(b"no\n")
        os._exit(0)
    connection.sendall(f"pid {os.getpid()}\n".encode())
    connection.close()
    return request


def import_all() -> None:
    import numpy  # noqa: F401
    import torch
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.run
    import torch.nn.parallel

    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def run_here(request: dict[str, Any], own_path: list[str]) -> None:
    """Runs a program as the interpreter would, in the module __main__."""
    kind, name, arguments = request["program"]
    sys.orig_argv = request["words"]
    sys.argv = list(arguments)
    beside = [os.path.dirname(os.path.realpath(name))] if kind == "file" else [""]
    if kind == "module":
        beside = [os.getcwd()]
    given = [os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [*beside, *given, *own_path]
    open_standard_streams(unbuffered="-u" in request["words"] or bool(os.environ.get("PYTHONUNBUFFERED")))
    if kind == "module":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if kind == "file":
        main.__file__ = name
        with open(name, "rb") as file:
            text: bytes | str = file.read()
    else:
        text = name
    sys.modules["__main__"] = main
    exec(compile(text, name if kind == "file" else "<string>", "exec", dont_inherit=True), main.__dict__)


if __name__ == "__main__":
    started_with = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest_of_path = [each for each in sys.path[1:] if each not in started_with]
    server = Server(sys.argv[1])  # who asks already waits
    import_all()
    gc.collect()
    gc.freeze()  # or the first collection of each child would copy all pages
    run_here(server.serve(), rest_of_path)
