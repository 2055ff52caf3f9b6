"""Jobs that are submitted to a cluster with queues, which chooses their machines: SGE and YARN."""

from __future__ import annotations

import os
import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gradwire.launch.child import Deliver, Line, LocalHost, MakeSplitter
from gradwire.launch.clusters import agent
from gradwire.launch.external_launcher import StarterJob
from gradwire.launch.hosts import address_of, is_this_machine
from gradwire.launch.job import make_job
from gradwire.launch.remote import ssh
from gradwire.launch.slurm import LabelledSplitter
from gradwire.launch.supervisor import JobResult, run_prepared


@dataclass(frozen=True)
class ClusterJob(StarterJob):
    """A job whose starters are agents. queue: as the cluster takes it; None: its own choice."""

    launcher: ClassVar[str]  # its agent is clusters/LAUNCHER_agent.py
    machine_word: ClassVar[str]  # what the cluster calls a machine that runs jobs

    queue: str | None = None

    @classmethod
    @abstractmethod
    def machines(cls) -> list[str]:
        """Returns the names of the machines on which the cluster runs jobs.

        Raises: FileNotFoundError: its commands are not on PATH. RuntimeError: they fail; has their message.
        """

    @abstractmethod
    def own_order(self) -> dict[str, Any]:
        """Returns what this cluster's agent needs beyond what all agents get."""

    @property
    def rank_variable(self) -> str:
        return agent.RANK

    @property
    def splitter(self) -> MakeSplitter:
        return LabelledSplitter

    @property
    def deliver(self) -> Deliver:
        return agent.deliver

    @property
    def lets_workers_save(self) -> bool:
        return False  # qdel and YARN end tasks at once, or by a notice of their own

    def start(self, ranks: int, environment: Mapping[str, str], command: Sequence[str]) -> list[str]:
        order = {
            "name": f"gradwire-{secrets.token_hex(6)}",
            "tasks": ranks,
            "queue": self.queue,
            "variables": sorted(ssh.forwarded(environment, self.variables)),
            "notice_seconds": self.notice_seconds,
            **self.own_order(),
        }
        return agent.command(f"gradwire.launch.clusters.{self.launcher}_agent", order, command)


def run_queued_job(
    kind: type[ClusterJob],
    command: Sequence[str],
    workers: int,
    servers: int,
    *,
    env: Mapping[str, str],
    role_env: Mapping[str, Mapping[str, str]],
    queue: str | None,
    sizes: Mapping[str, int],
    looking: Sequence[str],
    output: Callable[[Line], None],
    report: Callable[[str], None],
) -> JobResult:
    """Runs command as every worker in a cluster. As launch.run_job, but for what follows.

    Args:
        servers: started only if above 0.
        queue: as the cluster takes it; None: its own choice.
        sizes: cores and memory (bytes) of a process, where kind has them; those not given are its own.
        looking: words before what is run on a machine.

    Raises: FileNotFoundError: the cluster's commands are not here. RuntimeError: it is not up, or a machine has no
        address.
    """
    others = [name for name in kind.machines() if not is_this_machine(name)]
    here = LocalHost(ssh.own_address(_address_of(others[0], kind))) if others else LocalHost()
    job = make_job(command, workers, servers, env, placement=lambda role, rank: here, role_env=role_env)
    given = {"elsewhere": bool(others), "folder": os.getcwd(), "variables": frozenset(env)}
    return run_prepared(kind.of(job, here, queue=queue, looking=looking, **given, **sizes), output, report)


def _address_of(machine: str, kind: type[ClusterJob]) -> str:
    try:
        return address_of(machine)
    except OSError as error:
        raise RuntimeError(
            f"run: --launcher {kind.launcher}: {kind.machine_word} {machine} has no address here ({error}): give it "
            "one in /etc/hosts or DNS"
        ) from None
