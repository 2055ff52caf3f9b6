"""Jobs of real processes on loopback, started by `gradwire run` or by hand, and nothing left behind.

A worker is one of the programs beside this file. It writes `worker<rank>.pid` into $TEST_FOLDER, and
`worker<rank>.running` once it is in the middle of its training.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).resolve().parent
PROGRAMS = Path(sys.executable).parent
SERVER = str(PROGRAMS / "gradwire-server")
START_SECONDS = 60.0  # for a job to be in the middle of its training
NOTICE_SECONDS = 20.0  # for everybody to have ended after a failure
PATIENCE = 5.0
"""How many times as long a deadline is really waited for. Tests must not fail because a machine is busy, and what hangs
does so for longer: for half an hour (GRADWIRE_SLOW_ABORT), or in a sleep of ten minutes."""
SCHEDULER = ("scheduler", 0)
FOLDER_OF_MPIRUN = "OMPI_MCA_orte_tmpdir_base"
"""conftest.py says why each process of tests has its own."""
Member = tuple[str, int]  # role and rank


def clean_environment(folder: Path, variables: dict[str, str]) -> dict[str, str]:
    """This process's environment without what describes another job."""
    others = ("GRADWIRE_", "DMLC_", "MASTER_", "RANK", "WORLD_SIZE", "TORCHELASTIC_", "OMPI_", "SLURM_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(others) or name == FOLDER_OF_MPIRUN
    }
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return kept | single | {"TEST_FOLDER": str(folder)} | variables


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds * PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie, which only waits to be collected, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    """Pids of all that a process has started, and what those have."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, pending = [], [pid]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def listening(pid: int) -> list[tuple[str, int]]:
    """Addresses and ports that a process listens on for TCP, from /proc; of an IPv4 one mapped to IPv6, the former."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
    tables = [Path(f"/proc/{pid}/net/tcp"), Path(f"/proc/{pid}/net/tcp6")]  # of its own network namespace
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    found = [row[1].split(":") for row in rows if row[3] == "0A" and row[9] in inodes]
    return [(_address_of(address), int(port, 16)) for address, port in found]


def _address_of(text: str) -> str:
    """/proc writes an address as words of 32 bits in the machine's own order."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return str(getattr(address, "ipv4_mapped", None) or address)


def member_of(pid: int) -> Member | None:
    """Role and rank of a gradwire-server by its command line."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if words[0].endswith("gradwire-server") and "--role" in words:
            role = words[words.index("--role") + 1]
            return (role, int(words[words.index("--rank") + 1]) if role == "server" else 0)
    return None


@dataclass
class Ended:
    """How a process ended. For a whole `gradwire run`, member is ("run", 0) and the output is everybody's."""

    member: Member
    code: int
    out: str
    err: str

    def records(self) -> list[dict[str, object]]:
        """The JSON lines on stdout, without the launcher's prefixes."""
        return [json.loads(line[line.index("{") :]) for line in self.out.splitlines() if "{" in line]

    def __str__(self) -> str:
        return f"{self.member} ended with {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


@dataclass
class Started:
    """A process whose output goes to files, so that no full pipe can stop it."""

    member: Member
    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def ended(self, seconds: float) -> Ended:
        try:
            code = self.process.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.member} still runs after {seconds:g} s\n{self.out.read_text()}\n{self.err.read_text()}"
            ) from None
        return Ended(self.member, code, self.out.read_text(), self.err.read_text())


@dataclass
class Job:
    """The processes of one job. Leaving the `with` block kills what is left, and says so."""

    folder: Path
    variables: dict[str, str]
    members: dict[Member, Started] = field(default_factory=dict)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        for started in self.members.values():
            if started.process.poll() is None:
                for pid in [*descendants(started.process.pid), started.process.pid]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                started.process.wait()

    def start(
        self,
        member: Member,
        command: Sequence[str],
        variables: dict[str, str] | None = None,
        **options: object,
    ) -> Started:
        role, rank = member
        out, err = self.folder / f"{role}{rank}.out", self.folder / f"{role}{rank}.err"
        environment = clean_environment(self.folder, self.variables | (variables or {}))
        with out.open("wb") as to_out, err.open("wb") as to_err:
            process = subprocess.Popen(
                list(command),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
                **options,  # type: ignore[call-overload]
            )
        self.members[member] = Started(member, process, out, err)
        return self.members[member]

    def pids(self) -> dict[Member, int]:
        return {member: started.process.pid for member, started in self.members.items()}

    def wait_until_training(self, workers: int) -> None:
        def running() -> bool:
            for started in self.members.values():
                assert started.process.poll() is None, str(started.ended(0))
            return all((self.folder / f"worker{rank}.running").exists() for rank in range(workers))

        wait_until(running, START_SECONDS, "the workers to be in the middle of their training")


@dataclass
class ByHand(Job):
    """Scheduler, servers and workers started one by one, as a cluster's own scripts would."""

    workers: int = 2
    servers: int = 2
    endpoint: str = ""

    def server_flags(self, role: str, endpoint: str) -> list[str]:
        key = ["--key-variable", "GRADWIRE_JOB_KEY"] if "GRADWIRE_JOB_KEY" in self.variables else []
        liveness = self.variables.get("GRADWIRE_LIVENESS_TIMEOUT", "20s").removesuffix("s")
        rendezvous = self.variables.get("GRADWIRE_RENDEZVOUS_TIMEOUT", "60s").removesuffix("s")
        return [
            *(SERVER, "--role", role, "--scheduler", endpoint),
            *("--workers", str(self.workers), "--servers", str(self.servers)),
            *("--liveness-timeout", liveness, "--rendezvous-timeout", rendezvous),
            *key,
        ]

    def start_scheduler(self) -> None:
        reader, writer = os.pipe()
        command = [*self.server_flags("scheduler", "tcp://127.0.0.1:0"), "--announce", str(writer)]
        self.start(SCHEDULER, command, pass_fds=(writer,))
        os.close(writer)
        with os.fdopen(reader) as announced:
            self.endpoint = announced.readline().strip()
        assert self.endpoint, "the scheduler did not say where it listens"

    def start_server(self, rank: int) -> None:
        command = [*self.server_flags("server", self.endpoint), "--rank", str(rank)]
        self.start(("server", rank), [*command, "--bind-host", "127.0.0.1"])

    def identity(self, role: str, rank: int) -> dict[str, str]:
        return {
            "GRADWIRE_ROLE": role,
            "GRADWIRE_RANK": str(rank),
            "GRADWIRE_NUM_WORKERS": str(self.workers),
            "GRADWIRE_NUM_SERVERS": str(self.servers),
            "GRADWIRE_SCHEDULER": self.endpoint,
        }

    def start_worker(
        self, rank: int, command: Sequence[str], variables: dict[str, str] | None = None
    ) -> None:
        self.start(("worker", rank), command, self.identity("worker", rank) | (variables or {}))

    def start_all(self, command: Sequence[str]) -> None:
        self.start_scheduler()
        for rank in range(self.servers):
            self.start_server(rank)
        for rank in range(self.workers):
            self.start_worker(rank, command)

    def end(self, seconds: float) -> dict[Member, Ended]:
        """Waits for all to end."""
        end = time.monotonic() + seconds
        return {m: s.ended(max(0.1, end - time.monotonic())) for m, s in self.members.items()}


@dataclass
class Run(Job):
    """A job under `gradwire run`."""

    workers: int = 2
    servers: int | None = 2

    @property
    def launcher(self) -> Started:
        return self.members["run", 0]

    def launch(self, command: Sequence[str]) -> None:
        counts = ["-n", str(self.workers), *([] if self.servers is None else ["-s", str(self.servers)])]
        self.start(("run", 0), [str(PROGRAMS / "gradwire"), "run", *counts, *command])

    def pids(self) -> dict[Member, int]:
        found = {member: pid for pid in self.all_pids() if (member := member_of(pid)) is not None}
        for rank in range(self.workers):
            found["worker", rank] = int((self.folder / f"worker{rank}.pid").read_text())
        return found

    def all_pids(self) -> list[int]:
        return descendants(self.launcher.process.pid)

    def end(self, seconds: float) -> Ended:
        return self.launcher.ended(seconds)


def run_to_the_end(
    folder: Path,
    command: Sequence[str],
    *,
    workers: int = 2,
    servers: int | None = 2,
    seconds: float = 90.0,
    **variables: str,
) -> Ended:
    """Runs a job under `gradwire run`."""
    folder.mkdir(exist_ok=True)
    with Run(folder, variables, workers=workers, servers=servers) as job:
        job.launch(command)
        return job.end(seconds)


def agreed(ended: Ended, workers: int, field: str = "hashes") -> object:
    """What the records of all ranks hold in a field, which must be the same on all."""
    assert ended.code == 0, str(ended)
    records = ended.records()
    assert sorted(str(record["rank"]) for record in records) == sorted(map(str, range(workers))), str(ended)
    assert all(record[field] == records[0][field] for record in records), records
    return records[0][field]


def assert_gone(pids: Sequence[int], seconds: float = 2.0) -> None:
    """No process of the job is left; the kernel may take a moment to end what was killed."""
    assert pids, "no process was looked for, so nothing would be proven"
    wait_until(lambda: not any(map(is_alive, pids)), seconds, f"{[p for p in pids if is_alive(p)]} to end")


def names(text: str, member: Member) -> bool:
    """Whether a text names a role and rank: "server 1"; the scheduler has no rank."""
    role, rank = member
    return re.search(rf"\b{role}\b" if role == "scheduler" else rf"\b{role} {rank}\b", text) is not None


def python(program: str, *arguments: str) -> list[str]:
    """The command of a program beside this file."""
    return [sys.executable, str(HERE / program), *arguments]
