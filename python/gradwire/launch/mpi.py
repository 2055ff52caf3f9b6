"""`gradwire run --launcher mpi`: one mpirun starts all workers, another the servers, if any are asked for.

Ranks are MPI's own. The scheduler runs here, so that stores over sockets work as under any launcher.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gradwire.launch.child import Deliver, Line, LocalHost, MakeSplitter, NotHandedOnError
from gradwire.launch.external_launcher import StarterJob
from gradwire.launch.job import make_job
from gradwire.launch.mpi_output import TaggedSplitter
from gradwire.launch.remote import ssh
from gradwire.launch.supervisor import JobResult, run_prepared

_FOLDER = "OMPI_MCA_orte_tmpdir_base"
_ONE_SIDED_FOLDERS = ("OMPI_MCA_orte_local_tmpdir_base", "OMPI_MCA_orte_remote_tmpdir_base")
"""mpirun refuses these together with _FOLDER."""


@dataclass(frozen=True)
class MpiJob(StarterJob):
    """A job that mpirun starts. hosts: as its -H takes them. agent: how it reaches them."""

    agent: str = "ssh"

    def of_role(self, role: str) -> MpiJob:
        """Gives the servers' mpirun a folder of its own, which stays, empty, on each host. If two mpiruns start at once
        on a host without a folder of Open MPI's, both make it, and one fails (open-mpi/ompi, issue 8510).
        """
        own = super().of_role(role)
        if role != "server" or any(name in own.environment for name in _ONE_SIDED_FOLDERS):
            return own
        above = own.environment.get(_FOLDER) or ("/tmp" if self.hosts else tempfile.gettempdir())
        folder = os.path.join(above, f"gradwire-servers.{os.getuid()}")
        return replace(own, environment={**own.environment, _FOLDER: folder})

    @property
    def rank_variable(self) -> str:
        return "OMPI_COMM_WORLD_RANK"

    @property
    def splitter(self) -> MakeSplitter:
        return TaggedSplitter

    @property
    def lets_workers_save(self) -> bool:
        return (
            not self.hosts
        )  # mpirun ends ranks within a second of its SIGTERM, and hands none on to other hosts

    @property
    def deliver(self) -> Deliver:
        return _by_mpirun if self.hosts else _to_ranks_here

    def start(self, ranks: int, environment: Mapping[str, str], command: Sequence[str]) -> list[str]:
        words = ["mpirun", "--tag-output", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
        if os.geteuid() == 0:
            words.append("--allow-run-as-root")
        if self.hosts:
            words += ["-H", ",".join(self.hosts), "--mca", "plm_rsh_agent", self.agent, "-wdir", self.folder]
            for name in ssh.forwarded(environment, self.variables):
                words += ["-x", name]
        return [*words, *command]


def _by_mpirun(pid: int, number: signal.Signals) -> None:
    """Open MPI hands on SIGUSR1 and SIGUSR2 to all ranks, and of those here nothing else."""
    if number not in (signal.SIGUSR1, signal.SIGUSR2):
        raise NotHandedOnError("mpirun forwards only SIGUSR1 and SIGUSR2 to ranks on other hosts")
    os.kill(pid, number)


def _to_ranks_here(pid: int, number: signal.Signals) -> None:
    """Ranks on this machine are mpirun's children."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        ranks = [int(word) for word in file.read().split()]
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, number)


def run_mpi_job(
    command: Sequence[str],
    workers: int,
    servers: int,
    *,
    env: Mapping[str, str],
    role_env: Mapping[str, Mapping[str, str]],
    hosts: Sequence[str],
    agent: str,
    folder: str,
    address: str,
    first: str,
    output: Callable[[Line], None],
    report: Callable[[str], None],
) -> JobResult:
    """Runs command as every worker under mpirun. As launch.run_job, but for what follows.

    Args:
        servers: started only if above 0.
        hosts: "node1:2", as mpirun's -H takes them; none: all here. agent: the ssh command with its options.
        folder: where workers run. address: of this machine, as the hosts reach it. first: of the host that
            has rank 0.

    Raises: FileNotFoundError: there is no mpirun.
    """
    if shutil.which("mpirun") is None:
        raise FileNotFoundError("run: --launcher mpi: no mpirun on PATH: install openmpi-bin")
    here = LocalHost(address)
    beside = LocalHost(first)

    def place(role: str, rank: int) -> LocalHost:
        return here if role == "scheduler" else beside

    job = make_job(command, workers, servers, env, placement=place if hosts else None, role_env=role_env)
    given = {"hosts": hosts, "elsewhere": bool(hosts), "folder": folder, "variables": frozenset(env)}
    return run_prepared(MpiJob.of(job, here, agent=agent, **given), output, report)
