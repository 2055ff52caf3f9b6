"""Hosts that ssh reaches: where `gradwire run --launcher ssh` starts workers and servers."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.launch.hosts import address_of
from gradwire.launch.remote import bundle, ssh_agent

_CONNECT_SECONDS = 10
GREETING = "gradwire: ssh has connected"
"""The first line of a process on another host: what comes before is the host's own."""
LAUNCHES_AT_ONCE = 8
"""Connections to one host that may be under way: sshd's default MaxStartups begins to refuse some at 10."""
UNREACHABLE = 255
"""ssh's exit code where it has failed itself."""
# A host that has died is noticed by its silence; nobody is asked for a password; the user's own options count first.
# No process becomes the master of a shared connection, whatever ssh's configuration says: ssh ends only with the last
# process on the connection, so the end of that one process would be known when the others have ended. A connection
# that a user has opened is used.
_OPTIONS = (
    *("-o", "ControlMaster=no"),
    *("-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}", "-o", "LogLevel=ERROR"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
# What a process on another host must know of the environment here; the rest is that host's own business.
_FORWARDED = (
    *("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV"),
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)
_FORWARDED_PREFIXES = (
    *("GRADWIRE_", "DMLC_", "MXNET_", "BYTEPS_", "PS_", "NCCL_", "GLOO_", "PYTHON"),
    *("OMP_", "OPENBLAS_", "MKL_"),
)
# What says which host this one is, and is wrong on any other.
OF_THIS_HOST = ("GRADWIRE_HOST_ID", "GRADWIRE_BIND_HOST", "DMLC_NODE_HOST")
_NOT_COPIED = (".git", ".venv", "__pycache__")


class HostUnreachable(RuntimeError):
    """A host cannot be reached or used; says which and why."""


def forwarded(environment: Mapping[str, str], asked_for: Collection[str]) -> dict[str, str]:
    """Returns the variables that go to other hosts: the job's, those for paths of programs, and those of --env."""
    return {
        name: value
        for name, value in environment.items()
        if name in asked_for
        or name in _FORWARDED
        or (name.startswith(_FORWARDED_PREFIXES) and name not in OF_THIS_HOST)
    }


@dataclass(frozen=True)
class SshHost:
    """A host that ssh reaches.

    Attributes:
        name: the host as ssh takes it.
        address: its address for the job's other hosts.
        ssh: the program, with the user's options.
        folder: where processes run there.
        variables: names of variables that go there besides the job's own.
    """

    name: str
    address: str
    ssh: tuple[str, ...]
    folder: str
    variables: frozenset[str] = frozenset()
    namespace: None = None

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Starts command there. It lives as long as the pipe to the returned process's stdin."""
        order = {
            "folder": self.folder,
            "environment": forwarded(options.pop("env", os.environ), self.variables),
            "command": list(command),
            "greeting": GREETING,
        }
        process = subprocess.Popen(
            self.command(_python(bundle.program(ssh_agent))),
            **(options | {"stdin": subprocess.PIPE}),
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # ssh has ended, and its exit code and words say why
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        return process

    def command(self, line: str) -> list[str]:
        """Returns the command that makes the host's shell run a line."""
        return [*self.ssh, "-T", *_OPTIONS, "--", self.name, line]

    def copy_here(self, source: Path) -> None:
        """Copies the contents of a local folder into the host's folder, over existing files.

        Raises: HostUnreachable: has the message of tar or ssh, or there is no tar here.
        """
        _require_tar(f"--sync-dst-dir {self.folder}")
        without = [f"--exclude={name}" for name in _NOT_COPIED]
        unpack = _by_sh('mkdir -p "$1" && tar -C "$1" -xf -', self.folder)
        with subprocess.Popen(
            ["tar", "-C", str(source), *without, "-cf", "-", "."], stdout=subprocess.PIPE
        ) as tar:
            there = subprocess.run(
                self.command(unpack),
                stdin=tar.stdout,
                capture_output=True,
                text=True,
                check=False,
            )
        if tar.returncode != 0 or there.returncode != 0:
            said = there.stderr.strip() or f"tar ended with {tar.returncode}"
            raise HostUnreachable(f"run: {source} could not be copied to {self.name}:{self.folder}: {said}")

    def move_here(self, folder: str, into: Path) -> None:
        """Moves the files of one of the host's folders, if it exists, into a new local folder.

        Raises: HostUnreachable: has the message of tar or ssh, or there is no tar here.
        """
        _require_tar("--timeline")
        files = 'if [ -d "$1" ]; then tar -C "$1" -cf - . && rm -r "$1"; else tar -cf - -T /dev/null; fi'
        pack = _by_sh(files, folder)
        into.mkdir(exist_ok=True)
        with subprocess.Popen(
            self.command(pack), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as there:
            here = subprocess.run(
                ["tar", "-C", str(into), "-xf", "-"],
                stdin=there.stdout,
                capture_output=True,
                text=True,
                check=False,
            )
            assert there.stderr is not None
            said = there.stderr.read().decode(errors="replace") + here.stderr
        if there.returncode != 0 or here.returncode != 0:
            what = said.strip() or f"ssh ended with {there.returncode}"
            raise HostUnreachable(f"run: {self.name}:{folder} could not be brought here: {what}")


def _require_tar(option: str) -> None:
    if shutil.which("tar") is None:
        raise HostUnreachable(f"run: {option}: no tar on PATH, which packs the files: install it")


def _python(program: str) -> str:
    """A line that runs a program by this Python's path, or by the first python3 where that is not there."""
    script = '[ -x "$1" ] || set -- python3 "$2"; exec "$1" -I -S -c "$2"'
    packed = base64.b64encode(program.encode()).decode("ascii")
    return _by_sh(script, sys.executable, f'import base64; exec(base64.b64decode("{packed}"))')


def _by_sh(script: str, *arguments: str) -> str:
    """A line that has sh run a script, whatever the login shell is: one command, words in single quotes, no line end
    within them, which csh does not take."""
    return f"exec {shlex.join(['sh', '-c', script, 'sh', *arguments])}"


def resolve(name: str, ssh: Sequence[str]) -> str:
    """Returns the address of a host: of the name that ssh's own configuration gives it.

    Raises: HostUnreachable: ssh cannot be run, or the name has no address.
    """
    try:
        asked = subprocess.run(
            [*ssh, "-G", "--", name], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostUnreachable(
            f"run: {ssh[0]}: {error}; install openssh-client, or name it by --ssh"
        ) from None
    words = dict(line.partition(" ")[::2] for line in asked.stdout.splitlines())
    if asked.returncode != 0 or "hostname" not in words:
        raise HostUnreachable(f"run: {shlex.join(ssh)} does not know {name}: {asked.stderr.strip()}")
    try:
        return address_of(words["hostname"])
    except OSError as error:
        raise HostUnreachable(f"run: -H names {name}, which has no address: {error}") from None


def own_address(towards: str) -> str:
    """Returns the address of this machine from which it reaches another's. Sends nothing."""
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))
        return str(probe.getsockname()[0])
