"""Runs a program that wants PyTorch as a child of the fork server, where that serves it; else as any other.

Python imports this module at its start, before the program, in every process that has this folder on PYTHONPATH.
server.py says what it is for. The process that was started stays: it hands its descriptors, folder and environment to
the child, passes signals on to it, and ends as the child does, by the same signal or with the same exit status. When
it is killed, so is the child, with all that the child has started in its session.

Whatever is out of the ordinary (options of the interpreter, another sitecustomize, another root folder, other threads
for OpenMP) runs as any other program.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "TEST_FORK_SERVER"
"""The path of the server's socket."""


def program_of(words: list[str]) -> tuple[str, str, list[str]] | None:
    """Returns what an interpreter was asked to run: its kind (file, module or text), its name, and sys.argv.

    None: it does not want PyTorch, or has options that a running interpreter cannot take up.
    """
    rest = words[1:]
    while rest[:1] == ["-u"]:
        rest = rest[1:]
    if rest[:2] == ["-m", "torch.distributed.run"]:
        return "module", rest[1], rest[1:]
    if len(rest) > 1 and rest[0] == "-c":
        return ("text", rest[1], ["-c", *rest[2:]]) if "import torch" in rest[1] else None
    if not rest or rest[0].startswith("-"):
        return None
    try:
        with open(rest[0], encoding="utf-8") as file:
            wants = "torch" in file.read()
    except (OSError, UnicodeDecodeError):
        return None
    return ("file", rest[0], rest) if wants else None


def is_alone() -> bool:
    """Whether this is the only module of its name on PYTHONPATH. Another has something to do in the program itself."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    names = [os.path.join(folder, "sitecustomize.py") for folder in folders if folder]
    return [name for name in names if os.path.exists(name)] == [__file__]


def descriptors() -> list[int]:
    """Those that this process was started with: all but those that exec would close."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.get_inheritable(int(name)):
                found.append(int(name))
        except OSError:
            pass  # the listing's own
    return found


def stand_in(path: str, program: tuple[str, str, list[str]]) -> None:
    """Lets the server run a program, and ends as it does. Returns if the server does not serve it."""
    import contextlib
    import json
    import select
    import signal
    import socket

    inherited = descriptors()
    ignored = [int(s) for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN]
    # What comes before this can hand signals on waits: the child may run already.
    blocked = [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())]
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return
    request = {
        "pid": os.getpid(),
        "program": program,
        "words": sys.orig_argv,
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "descriptors": inherited,
        "ignored": ignored,
        "blocked": blocked,
    }
    body = json.dumps(request).encode()
    socket.send_fds(connection, [len(body).to_bytes(8, "little")], inherited)
    connection.sendall(body)
    replies = connection.makefile("rb", buffering=0)  # what select() does not see is not read
    said = replies.readline().split()
    if said[:1] != [b"pid"]:
        connection.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return
    child = int(said[1])

    def hand_on(number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and so will this one
            os.kill(child, number)

    kept = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    for number in signal.valid_signals() - kept - set(map(signal.Signals, ignored)):
        with contextlib.suppress(OSError, ValueError):  # glibc keeps two for itself
            signal.signal(number, hand_on)
    # A signal just before a read would not end it: its handler would run when the child has ended.
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for descriptor in inherited:  # whoever waits for the end of a pipe waits for the child's alone
        os.close(descriptor)
    while connection not in select.select([connection, woken], [], [])[0]:
        woken.recv(1024)
    status = replies.readline().split()
    if not status:
        os._exit(70)  # the server has gone
    code = os.waitstatus_to_exitcode(int(status[1]))
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if (path := os.environ.get(VARIABLE)) and is_alone() and (program := program_of(sys.orig_argv)):
    stand_in(path, program)
