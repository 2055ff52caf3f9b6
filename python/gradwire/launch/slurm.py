"""`gradwire run --launcher slurm`: one srun starts all workers, another the servers, if any are asked for.

Inside an allocation (salloc, sbatch) both are steps of it, and share its processors; outside one each srun asks Slurm
for an allocation of its own, and the job begins when it has both. The scheduler runs here.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gradwire.launch import srun_wrapper
from gradwire.launch.child import Line, LineSplitter, LocalHost, MakeSplitter, Stream
from gradwire.launch.external_launcher import StarterJob
from gradwire.launch.hosts import address_of
from gradwire.launch.job import make_job
from gradwire.launch.remote import ssh
from gradwire.launch.supervisor import JobResult, run_prepared

_ASK_SECONDS = 30
_LABEL = re.compile(rb" *(\d+): ")


@dataclass(frozen=True)
class SlurmJob(StarterJob):
    """A job that srun starts. hosts: a node for each worker, in the order of the ranks; none: Slurm chooses."""

    servers_ignore: ClassVar[str] = (
        "TERM USR1 USR2 QUIT"  # Slurm announces the end of an allocation to all steps
    )

    @property
    def rank_variable(self) -> str:
        return "SLURM_PROCID"

    @property
    def splitter(self) -> MakeSplitter:
        return LabelledSplitter

    def workers_environment(self, scheduler: str, beside: int) -> dict[str, str]:
        """Returns the workers' variables. Slurm passes on all of them, so none may name this host."""
        whole = super().workers_environment(scheduler, beside)
        wrong = ssh.OF_THIS_HOST if self.elsewhere else ()
        return {name: text for name, text in whole.items() if name not in wrong or name in self.variables}

    def start(self, ranks: int, environment: Mapping[str, str], command: Sequence[str]) -> list[str]:
        name = f"gradwire-{secrets.token_hex(6)}"
        agent = [sys.executable, "-I", "-S", srun_wrapper.__file__, name]
        words = [*agent, "srun", f"--job-name={name}", f"--ntasks={ranks}"]
        words += ["--label", "--overlap", "--kill-on-bad-exit=1"]
        # All variables go along, those of --env too; what waits for input gets none, as under every launcher.
        words += ["--export=ALL", "--input=none", f"--chdir={self.folder}"]
        if self.hosts:
            nodes = [self.hosts[rank % len(self.hosts)] for rank in range(ranks)]
            words += ["--distribution=arbitrary", f"--nodelist={','.join(nodes)}"]
        return [*words, "--", *command]


class LabelledSplitter:
    """Cuts one stream of `srun --label` into lines. rank None: srun's own messages."""

    def __init__(self, role: str, rank: int | None, stream: Stream) -> None:
        self._role = role
        self._own = rank
        self._stream: Stream = stream
        self._splitters: dict[int | None, LineSplitter] = {}
        self._pending = b""

    def feed(self, data: bytes, now: float) -> list[Line]:
        """Takes what was read (b"" at the end of the stream) and returns the lines that it completes."""
        *whole, self._pending = (self._pending + data).split(b"\n")
        if not data and self._pending:
            whole, self._pending = [self._pending], b""
        return [line for text in whole for line in self._take(text, now)]

    @property
    def unfinished(self) -> Line | None:
        return None  # more of it may belong to another rank

    def _take(self, text: bytes, now: float) -> list[Line]:
        label = _LABEL.match(text)
        rank = int(label[1]) if label else self._own
        splitter = self._splitters.setdefault(rank, LineSplitter())
        words = text[label.end() :] if label else text
        return [Line(self._role, rank, self._stream, line) for line in splitter.feed(words + b"\n", now)]


def nodes() -> list[str]:
    """Returns the nodes of this process's allocation; outside an allocation all nodes that Slurm knows.

    Raises: FileNotFoundError: Slurm's commands are not on PATH. RuntimeError: they fail; has their message.
    """
    if listed := os.environ.get("SLURM_JOB_NODELIST"):
        return _ask("scontrol", "show", "hostnames", listed)
    return list(dict.fromkeys(_ask("sinfo", "--noheader", "--Node", "--format=%N")))


def node_address(node: str) -> str:
    """Returns the address of a node: that of its name, or that by which Slurm reaches it.

    Raises: RuntimeError: neither is known.
    """
    try:
        return address_of(node)
    except OSError:
        words = " ".join(_ask("scontrol", "show", "node", node)).split()
    addresses = [word.removeprefix("NodeAddr=") for word in words if word.startswith("NodeAddr=")]
    if not addresses or addresses[0] == node:
        raise RuntimeError(
            f"run: --launcher slurm: node {node} has no address: give it one in /etc/hosts or DNS"
        )
    return addresses[0]


def _ask(*command: str) -> list[str]:
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ASK_SECONDS)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"run: --launcher slurm: no {command[0]} on PATH: expected Slurm's commands (Debian: slurm-client)"
        ) from None
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"run: --launcher slurm: {command[0]} has not answered for {_ASK_SECONDS} s: is slurmctld up?"
        ) from None
    if asked.returncode != 0:
        raise RuntimeError(f"run: --launcher slurm: {command[0]}: {asked.stderr.strip()}")
    return asked.stdout.split("\n")[:-1]


def run_slurm_job(
    command: Sequence[str],
    workers: int,
    servers: int,
    *,
    env: Mapping[str, str],
    role_env: Mapping[str, Mapping[str, str]],
    hosts: Sequence[str],
    address: str,
    elsewhere: bool,
    looking: Sequence[str],
    output: Callable[[Line], None],
    report: Callable[[str], None],
) -> JobResult:
    """Runs command as every worker under srun. As launch.run_job, but for what follows.

    Args:
        servers: started only if above 0.
        hosts: a node for each worker; none: Slurm chooses.
        address: of this machine, as the nodes reach it. elsewhere: whether others than this machine are used.
        looking: words before what is run on a node.

    Raises: FileNotFoundError: there is no srun.
    """
    if shutil.which("srun") is None:
        raise FileNotFoundError("run: --launcher slurm: no srun on PATH: install slurm-client")
    here = LocalHost(address)
    job = make_job(command, workers, servers, env, placement=lambda role, rank: here, role_env=role_env)
    given = {"hosts": hosts, "elsewhere": elsewhere, "folder": os.getcwd(), "variables": frozenset(env)}
    return run_prepared(SlurmJob.of(job, here, looking=looking, **given), output, report)
