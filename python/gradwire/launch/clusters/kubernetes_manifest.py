"""What a job is made of in Kubernetes: a Secret, a headless Service, and an Indexed Job for each role.

Sources: kubernetes.io/docs/concepts/workloads/controllers/job (completionMode, backoffLimit, ttlSecondsAfterFinished),
/tasks/job/indexed-parallel-processing-static (the index of a pod), /tasks/inject-data-application/
define-interdependent-environment-variables ($(NAME), $$).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.launch.clusters import agent
from gradwire.settings import encryption

Document = dict[str, Any]

SCHEDULER_PORT = 9091
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_POD_ADDRESS = "GRADWIRE_POD_ADDRESS"
_KEY = "job-key"
# Longer than workers have: as a container's first process a server does not end at SIGTERM, and serves them meanwhile.
_SERVERS_SECONDS = 2
_KEPT_SECONDS = 3600  # a job that has ended and that nobody has deleted
# A name is known once its pod has an address; who looks it up before that gives up at once.
_WAIT = """\
import socket, sys, time
for left in range(86400, -1, -1):
    try:
        socket.getaddrinfo(sys.argv[1], None)
        break
    except OSError:
        if not left:
            raise
        time.sleep(1)
"""


@dataclass(frozen=True)
class Manifest:
    """name: of the job, and what its objects' names begin with. image: of all containers. key: the job's, if any.
    cores, memory (bytes): of each worker and server, if that is said. grace_seconds: for workers to save, between
    SIGTERM and SIGKILL: also where Kubernetes drains a node."""

    name: str
    image: str
    key: str | None
    cores: int | None = None
    memory: int | None = None
    grace_seconds: float = 30.0

    @property
    def service(self) -> str:
        """The name under which pods find the scheduler."""
        return f"{self.name}-scheduler"

    @property
    def endpoint(self) -> str:
        return f"tcp://{self.service}:{SCHEDULER_PORT}"

    def of_scheduler(self, command: Sequence[str], environment: Mapping[str, str]) -> list[Document]:
        """Returns what must be there first. command: the word --scheduler is followed by where it listens."""
        at = command.index("--scheduler") + 1
        words = [*map(_literal, command)]
        words[at] = f"tcp://$({_POD_ADDRESS}):{SCHEDULER_PORT}"
        address = {"name": _POD_ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        container = self._container("scheduler", words, environment)
        container["env"].insert(0, address)
        container["ports"] = [{"name": "scheduler", "containerPort": SCHEDULER_PORT}]
        secret = [] if self.key is None else [self._secret(self.key)]
        return [*secret, self._service(), self._job("scheduler", 1, container, [])]

    def of_role(
        self, role: str, count: int, command: Sequence[str], environment: Mapping[str, str]
    ) -> Document:
        """Returns the Job of all workers, or of all servers, who also take --rank."""
        words = [*map(_literal, command)]
        if role == "server":
            words += ["--rank", f"$({agent.RANK})"]
        container = self._container(role, words, environment)
        ranks = [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}} for name in agent.RANK_VARIABLES
        ]
        container["env"] = ranks + container["env"]
        sizes = {"cpu": self.cores, "memory": self.memory}
        if given := {name: str(size) for name, size in sizes.items() if size is not None}:
            limits = {name: text for name, text in given.items() if name == "memory"}
            container["resources"] = {"requests": given, **({"limits": limits} if limits else {})}
        wait = {
            "name": "await-scheduler",
            "image": self.image,
            "command": ["python3", "-c", _WAIT, self.service],
        }
        return self._job(role, count, container, [wait])

    def selector(self, role: str) -> str:
        """Returns what selects a role's objects, and no others, by their labels."""
        return ",".join(f"{name}={text}" for name, text in self._labels(role).items())

    def _labels(self, role: str) -> dict[str, str]:
        whole = "app.kubernetes.io"
        return {f"{whole}/name": "gradwire", f"{whole}/instance": self.name, f"{whole}/component": role}

    def _metadata(self, role: str) -> Document:
        return {"name": f"{self.name}-{role}", "labels": self._labels(role)}

    def _secret(self, key: str) -> Document:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": self._metadata("scheduler"),
            "type": "Opaque",
            "immutable": True,
            "stringData": {_KEY: key},
        }

    def _service(self) -> Document:
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self._metadata("scheduler"),
            "spec": {
                "clusterIP": "None",  # headless: the name is the pod's own address
                "publishNotReadyAddresses": True,
                "selector": self._labels("scheduler"),
                "ports": [{"name": "scheduler", "port": SCHEDULER_PORT}],
            },
        }

    def _job(self, role: str, count: int, container: Document, before: list[Document]) -> Document:
        pod: Document = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": math.ceil(self.grace_seconds)
            + (0 if role == "worker" else _SERVERS_SECONDS),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **({"initContainers": before} if before else {}),
            "containers": [container],
        }
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": self._metadata(role),
            "spec": {
                "completionMode": "Indexed",
                "completions": count,
                "parallelism": count,
                "backoffLimit": 0,  # with the first pod that fails the Job has failed, and its others are ended
                "ttlSecondsAfterFinished": _KEPT_SECONDS,
                "template": {"metadata": {"labels": self._labels(role)}, "spec": pod},
            },
        }

    def _container(self, role: str, command: list[str], environment: Mapping[str, str]) -> Document:
        rows: list[Document] = [
            {"name": name, "value": _literal(text)}
            for name, text in sorted(environment.items())
            if name != encryption.VARIABLE
        ]
        if self.key is not None:
            reference = {"secretKeyRef": {"name": f"{self.name}-scheduler", "key": _KEY}}
            rows.append({"name": encryption.VARIABLE, "valueFrom": reference})
        return {"name": role, "image": self.image, "command": command, "env": rows}


def _literal(text: str) -> str:
    """Writes a text so that Kubernetes, to which $(NAME) is a variable's value, leaves it what it is."""
    return text.replace("$", "$$")


def as_list(documents: Sequence[Document]) -> Document:
    """Returns one document that holds all, as kubectl takes it."""
    return {"apiVersion": "v1", "kind": "List", "items": list(documents)}
