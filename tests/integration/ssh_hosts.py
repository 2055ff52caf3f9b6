"""Hosts with a real sshd each: namespaces of a netlab, and what an ssh client needs to enter them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gradwire import netlab
from gradwire.netlab import NetHost, NetLab

PORT = 2222
START_SECONDS = 20.0


def why_not() -> str | None:
    """Returns why no sshd can be started in hosts of its own here; None: it can."""
    if sshd() is None:
        return "there is no sshd: install openssh-server"
    return netlab.available()


def sshd() -> str | None:
    return shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")


@dataclass(frozen=True)
class SshLab:
    """hosts: their addresses. client: what --ssh takes. lab: the namespaces."""

    lab: NetLab
    hosts: list[str]
    client: str


@contextmanager
def ssh_lab(count: int, folder: Path, max_startups: str = "100") -> Iterator[SshLab]:
    """Makes hosts that take one key, and removes them with all that runs there. max_startups: as sshd_config has it."""
    folder.chmod(0o755)
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    config = folder / "client.conf"
    config.write_text(
        f"Host *\n  User root\n  Port {PORT}\n  IdentityFile {folder / 'user_key'}\n  IdentitiesOnly yes\n"
        "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
    )
    with NetLab(hosts=count) as lab:
        servers = [_start(host, folder, max_startups) for host in lab.hosts]
        try:
            for host, server in zip(lab.hosts, servers, strict=True):
                _wait(host, server, folder)
            yield SshLab(lab, [host.address for host in lab.hosts], f"ssh -F {config}")
        finally:
            for server in servers:
                server.kill()
                server.wait()


def _start(host: NetHost, folder: Path, max_startups: str) -> subprocess.Popen[bytes]:
    config = folder / f"sshd{host.index}.conf"
    config.write_text(
        f"Port {PORT}\nListenAddress {host.address}\nHostKey {folder / 'host_key'}\nPidFile none\n"
        f"AuthorizedKeysFile {folder / 'user_key.pub'}\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
        f"PermitRootLogin yes\nMaxStartups {max_startups}\n"
    )
    Path("/run/sshd").mkdir(
        exist_ok=True
    )  # it will not start without, and the service that makes it may not run
    program = sshd()
    assert program is not None
    with (folder / f"sshd{host.index}.log").open("wb") as log:
        return host.popen(
            [program, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _wait(host: NetHost, server: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection((host.address, PORT), timeout=1).close()
            return
        except OSError:
            said = (folder / f"sshd{host.index}.log").read_text()
            assert server.poll() is None, f"sshd ended: {said}"
            assert time.monotonic() < end, f"sshd at {host.address} does not listen: {said}"
            time.sleep(0.05)


def processes_with(word: str) -> list[int]:
    """Pids on this machine, in whatever namespace, whose environment has a word."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and word.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
