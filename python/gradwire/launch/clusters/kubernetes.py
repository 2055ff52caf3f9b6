"""`gradwire run --launcher kubernetes`: scheduler, servers and workers are pods of Indexed Jobs, made by kubectl.

All of them run there, the scheduler too: pods rarely reach the machine that kubectl is on.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

from gradwire.launch.child import Line
from gradwire.launch.clusters import agent
from gradwire.launch.clusters.kubernetes_manifest import Document, Manifest, as_list
from gradwire.launch.job import Job, Process, make_job
from gradwire.launch.remote import ssh
from gradwire.launch.slurm import LabelledSplitter
from gradwire.launch.supervisor import JobResult, run_prepared
from gradwire.settings import encryption

DOCUMENTS = "GRADWIRE_DOCUMENTS"
"""The variable that hands an agent its documents: they may hold the job's key, which no command line shows."""
_AGENT = "gradwire.launch.clusters.kubernetes_agent"
# Where programs lie and how many cores there are is the image's and the node's own business.
_OF_THE_IMAGE = frozenset(
    ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "OMP_NUM_THREADS")
)


@dataclass(frozen=True)
class Pod:
    """The host of a process in a pod, which is not known yet."""

    address: str = "0.0.0.0"
    namespace: None = None

    def popen(self, command: Sequence[str], **options: Any) -> NoReturn:
        raise OSError(f"{command[0]}: only Kubernetes starts pods")


@dataclass(frozen=True)
class KubernetesJob(Job):
    """A job whose processes are pods.

    Attributes:
        name: what its objects' names begin with. image: of all containers.
        kubernetes_namespace: None: the one that kubectl is set to.
        cores, memory: of each worker and server; memory in bytes; None: not asked for.
        variables: names of those that were given for all processes.
    """

    name: str = ""
    image: str = ""
    kubernetes_namespace: str | None = None
    cores: int | None = None
    memory: int | None = None
    variables: frozenset[str] = frozenset()

    def of_role(self, role: str) -> KubernetesJob:
        return replace(
            super().of_role(role), variables=self.variables.union(self.role_variables.get(role, ()))
        )

    @property
    def hears_late(self) -> bool:
        return True

    @property
    def manifest(self) -> Manifest:
        key = self.environment.get(encryption.VARIABLE)
        return Manifest(self.name, self.image, key, self.cores, self.memory, self.settings.grace_period)

    def documents(self) -> list[Document]:
        """Returns all objects of the job, in the order in which they are made."""
        return [*self._of_scheduler(), *([self._of_servers()] if self.servers else []), self._of_workers()]

    def scheduler(self, announce_fd: int) -> Process:
        """Returns the scheduler's process. Its agent announces the address, which is known beforehand."""
        more = {"announce": announce_fd, "endpoint": self.manifest.endpoint}
        return self._agent("scheduler", 1, self._of_scheduler(), **more)

    def processes(self, scheduler: str) -> list[Process]:
        servers = [self._agent("server", self.servers, [self._of_servers()])] if self.servers else []
        return [*servers, self._agent("worker", self.workers, [self._of_workers()])]

    def _of_scheduler(self) -> list[Document]:
        command = self._node_command("scheduler", self.manifest.endpoint)
        return self.manifest.of_scheduler(command, self._forwarded(self.environment))

    def _of_servers(self) -> Document:
        own = self.of_role("server")
        command = own._node_command("server", self.manifest.endpoint) + own._server_options(None)
        if own.settings.interface is not None:
            command += ["--interface", own.settings.interface]
        return self.manifest.of_role("server", self.servers, command, own._forwarded(own.environment))

    def _of_workers(self) -> Document:
        own = self.of_role("worker")
        environment = own.workers_environment(self.manifest.endpoint, beside=self.workers)
        return self.manifest.of_role("worker", self.workers, self.command, own._forwarded(environment))

    def _forwarded(self, environment: Mapping[str, str]) -> dict[str, str]:
        given = ssh.forwarded(environment, self.variables)
        return {
            name: text for name, text in given.items() if name in self.variables or name not in _OF_THE_IMAGE
        }

    def _agent(self, role: str, tasks: int, documents: Sequence[Document], **more: Any) -> Process:
        order = {
            "namespace": self.kubernetes_namespace,
            "selector": self.manifest.selector(role),
            "tasks": tasks,
            "role": role,
            "notice_seconds": self.notice_seconds,
            "grace_seconds": self.settings.grace_period,
            **more,
        }
        environment = {**self.environment, DOCUMENTS: json.dumps(as_list(documents))}
        words = agent.command(_AGENT, order, [])
        return Process(role, None, self.local, words, environment, LabelledSplitter, agent.deliver)


def make_kubernetes_job(
    command: Sequence[str],
    workers: int,
    servers: int,
    *,
    env: Mapping[str, str],
    role_env: Mapping[str, Mapping[str, str]],
    image: str,
    namespace: str | None,
    cores: int | None,
    memory: int | None,
) -> KubernetesJob:
    """Makes the job, and starts nothing.

    Args:
        servers: started only if above 0.
        image: of all containers: has gradwire-server, python3, and the workers' program.
        namespace: None: the one that kubectl is set to.
        cores, memory (bytes): of each worker and server; None: not asked for.
    """
    pod = Pod()
    job = make_job(command, workers, servers, env, placement=lambda role, rank: pod, role_env=role_env)
    program = job.settings.server_program or "gradwire-server"  # found on the image's PATH, not on ours
    made = {row.name: getattr(job, row.name) for row in fields(Job)} | {"server_program": program}
    return KubernetesJob(
        **made,
        name=f"gradwire-{secrets.token_hex(6)}",
        image=image,
        kubernetes_namespace=namespace,
        cores=cores,
        memory=memory,
        variables=frozenset(env),
    )


def run_kubernetes_job(
    job: KubernetesJob, output: Callable[[Line], None], report: Callable[[str], None]
) -> JobResult:
    """Runs it to its end. As launch.run_job.

    Raises: FileNotFoundError: there is no kubectl. RuntimeError: it cannot make Jobs.
    """
    if shutil.which("kubectl") is None:
        raise FileNotFoundError(
            "run: --launcher kubernetes: no kubectl on PATH: install it, or give --dry-run and make the job elsewhere"
        )
    words = ["kubectl", "auth", "can-i", "create", "jobs.batch", *of_namespace(job.kubernetes_namespace)]
    asked = subprocess.run(words, capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        said = (asked.stderr or asked.stdout).strip()
        raise RuntimeError(f"run: --launcher kubernetes: {' '.join(words)}: {said}")
    return run_prepared(job, output, report)


def of_namespace(namespace: str | None) -> list[str]:
    """Returns kubectl's option."""
    return [] if namespace is None else ["--namespace", namespace]
