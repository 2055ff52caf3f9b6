"""`gradwire run --launcher mpi`: one mpirun starts all workers, another the servers, if any are asked for.

Ranks are MPI's own. The scheduler runs here, so that stores over sockets work as under any launcher.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gradwire import ssh
from gradwire.child import Line, LocalHost
from gradwire.job import Job, Process, make_job
from gradwire.launch import JobResult, run_prepared
from gradwire.mpi_output import TaggedSplitter

# Hands the rank that mpirun gives to a program that takes it as a flag.
_WITH_RANK = 'exec "$0" "$@" --rank "$OMPI_COMM_WORLD_RANK"'


@dataclass(frozen=True)
class MpiJob(Job):
    """A job whose workers are one process here, mpirun, and so are its servers.

    hosts: as mpirun's -H takes them; none: this machine. agent: how mpirun reaches them. folder: where workers run.
    variables: names of those that go to other hosts beside the job's own.
    """

    hosts: Sequence[str] = ()
    agent: str = "ssh"
    folder: str = "."
    variables: frozenset[str] = frozenset()

    def processes(self, scheduler: str) -> list[Process]:
        environment = self.workers_environment(scheduler, beside=self.workers)
        worker = self._mpirun(self.workers, environment, self.command)
        processes = [Process("worker", None, self.local, worker, environment, TaggedSplitter)]
        if self.servers:
            server = self._node_command("server", scheduler) + self._options_of_all_servers()
            command = self._mpirun(self.servers, self.environment, ["sh", "-c", _WITH_RANK, *server])
            processes.insert(
                0, Process("server", None, self.local, command, self.environment, TaggedSplitter)
            )
        return processes

    def _options_of_all_servers(self) -> list[str]:
        """On several hosts: no name or address that only this machine has, unless --env gives it to all."""
        if not self.hosts:
            return self._server_options(self.settings.host_id) + self._bind_options(self.local)
        options = self._server_options(
            self.settings.host_id if "GRADWIRE_HOST_ID" in self.variables else None
        )
        if self.settings.bind_host and not self.variables.isdisjoint(
            ("GRADWIRE_BIND_HOST", "DMLC_NODE_HOST")
        ):
            return [*options, "--bind-host", self.settings.bind_host]
        return [*options, "--interface", self.settings.interface] if self.settings.interface else options

    def _mpirun(self, ranks: int, environment: Mapping[str, str], command: Sequence[str]) -> list[str]:
        words = ["mpirun", "--tag-output", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
        if os.geteuid() == 0:
            words.append("--allow-run-as-root")
        if self.hosts:
            words += ["-H", ",".join(self.hosts), "--mca", "plm_rsh_agent", self.agent, "-wdir", self.folder]
            for name in ssh.forwarded(environment, self.variables):
                words += ["-x", name]
        return [*words, *command]


def run_mpi_job(
    command: Sequence[str],
    workers: int,
    servers: int,
    *,
    env: Mapping[str, str],
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

    job = make_job(command, workers, servers, env, placement=place if hosts else None)
    fields = {name: getattr(job, name) for name in Job.__dataclass_fields__}
    mpi_job = MpiJob(**fields, hosts=hosts, agent=agent, folder=folder, variables=frozenset(env))
    return run_prepared(replace(mpi_job, local=here), output, report)
