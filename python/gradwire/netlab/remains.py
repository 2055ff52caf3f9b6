"""Finds and removes what labs leave on a machine; run as a program, it is the watchdog of one lab.

A lab's namespaces and links carry its identifier in their names, so all of it can be found again without a
record. The record (one small file per lab) only says who owns it. Standard library alone, and no import from
beside: the watchdog starts in the time of a bare interpreter.

    python remains.py OWNER_PID LAB      removes LAB once process OWNER_PID, its parent, has ended
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

NETNS = Path("/run/netns")
RECORDS = Path("/run/gradwire-netlab")
_NAME = re.compile(r"(?:gwlab-([0-9a-f]{6})-\d+|gl([0-9a-f]{6})(?:b|h\d+))")
_SEARCH_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def namespace_of(lab: str, host: int) -> str:
    return f"gwlab-{lab}-{host}"


def bridge_of(lab: str) -> str:
    return f"gl{lab}b"


def link_of(lab: str, host: int) -> str:
    """Names the bridge's end of a host's link (at most 15 characters, the kernel's limit)."""
    return f"gl{lab}h{host}"


def program(name: str) -> str | None:
    """Finds a system program, also where a user's PATH has no sbin."""
    return shutil.which(name, path=_SEARCH_PATH)


def accept_rule(lab: str) -> list[str]:
    """Returns the rule that lets hosts talk where bridged frames pass a firewall that drops by default."""
    return ["FORWARD", "-i", bridge_of(lab), "-o", bridge_of(lab), "-j", "ACCEPT"]


@dataclass(frozen=True)
class Record:
    """What is written down about a lab. owner is None for one that stays until `netlab down`.

    pid_namespace: that of the owner's number.
    """

    lab: str
    owner: int | None
    owner_started: int | None
    hosts: int
    subnet: str
    bandwidth: str | None
    pid_namespace: int | None = None

    def write(self) -> None:
        RECORDS.mkdir(parents=True, exist_ok=True)
        draft = RECORDS / f".{self.lab}"
        draft.write_text(json.dumps(asdict(self)))
        draft.rename(RECORDS / f"{self.lab}.json")

    def owner_lives(self) -> bool:
        """Whether it does, or cannot be seen from here: containers may share a network and not their processes."""
        if self.pid_namespace not in (None, pid_namespace()):
            return True
        return self.owner is not None and started(self.owner) == self.owner_started


def read(lab: str) -> Record | None:
    try:
        return Record(**json.loads((RECORDS / f"{lab}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def started(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since boot. None: no such process, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _names() -> list[str]:
    names = [path.name for path in NETNS.glob("gwlab-*")]
    return names + [path.name for path in Path("/sys/class/net").glob("gl*")]


def _named() -> set[str]:
    """Returns the identifiers of labs that have a namespace or a link."""
    return {match[1] or match[2] for name in _names() if (match := _NAME.fullmatch(name))}


def labs() -> list[str]:
    """Returns the identifiers of all labs of which anything is left."""
    return sorted({path.stem for path in RECORDS.glob("*.json")} | _named())


def ended() -> list[str]:
    """Returns the labs of which a record says that their owner has ended without removing them."""
    records = {lab: read(lab) for lab in labs()}
    return [lab for lab, r in records.items() if r and r.owner is not None and not r.owner_lives()]


def leftovers() -> list[str]:
    """Returns ended(), and labs without a record. Those can be of another container that has the same network, and in
    use: nobody but a user may remove them.
    """
    return [lab for lab in labs() if read(lab) is None] + ended()


def processes_in(namespaces: Sequence[Path]) -> list[int]:
    inodes, pids = set(), []
    for path in namespaces:
        with contextlib.suppress(OSError):  # another process removes the same lab
            inodes.add(path.stat().st_ino)
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            if entry.name.isdigit() and (entry / "ns/net").stat().st_ino in inodes:
                pids.append(int(entry.name))
    return pids


def kill_processes(namespaces: Sequence[Path], patience: float = 5.0) -> None:
    """Kills what runs in the namespaces, and what it forks meanwhile, and waits until it has ended."""
    deadline = time.monotonic() + patience
    while (pids := processes_in(namespaces)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _quietly(*command: str) -> None:
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def remove(lab: str, patience: float = 10.0) -> bool:
    """Removes all that is left of a lab: processes, links, namespaces, firewall rule, record. Repeatable.

    Another process may remove it at the same time, and either may find something busy: what is still there is tried
    again.

    Args:
        patience: seconds for which it is tried.

    Returns: whether all is gone. If not, the record stays, by which it is found later.
    """
    ip, iptables = program("ip") or "ip", program("iptables")
    deadline = time.monotonic() + patience
    while True:
        namespaces = sorted(NETNS.glob(f"gwlab-{lab}-*"))
        kill_processes(namespaces)
        # Links first: a namespace's own end lingers with its sockets.
        for link in Path("/sys/class/net").glob(f"gl{lab}*"):
            _quietly(ip, "link", "delete", link.name)
        for namespace in namespaces:
            _quietly(ip, "netns", "delete", namespace.name)
        is_left = lab in _named()
        if not is_left or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    if iptables:
        _quietly(iptables, "-w", "-D", *accept_rule(lab))
    if not is_left:
        (RECORDS / f"{lab}.json").unlink(missing_ok=True)
    return not is_left


def watch(owner: int, lab: str) -> None:
    """Says it is ready on stdout, waits for the owner's end however it comes, and removes the lab."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handle = os.pidfd_open(owner)
    if os.getppid() == owner:  # else it has ended already, and the handle may be another's
        os.write(1, b"ready\n")
        select.select([handle], [], [])
    remove(lab)


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2])
