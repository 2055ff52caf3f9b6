"""Jobs whose workers one program starts, such as mpirun or srun, and whose servers another run of it does."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from gradwire.launch.child import Deliver, LocalHost, MakeSplitter
from gradwire.launch.job import Job, Process

_Starter = TypeVar("_Starter", bound="StarterJob")


@dataclass(frozen=True)
class StarterJob(Job, ABC):
    """A job whose workers are one process here, the starter, and so are its servers. Ranks are the starter's own.

    Attributes:
        hosts: where the starter is to run them, in its own words; none: it chooses.
        elsewhere: whether that may be on other machines than this one.
        folder: where workers run.
        variables: names of those that were given for all hosts.
        looking: words before each command, which look at where it is about to run, and may refuse to.
    """

    servers_ignore: ClassVar[str] = (
        "USR1 USR2 QUIT"  # signals that reach all that was started, and mean workers
    )

    hosts: Sequence[str] = ()
    elsewhere: bool = False
    folder: str = "."
    variables: frozenset[str] = frozenset()
    looking: Sequence[str] = ()

    @classmethod
    def of(cls: type[_Starter], job: Job, here: LocalHost, **more: Any) -> _Starter:
        """Makes one of a job; here: this machine, as the hosts reach it."""
        fields = {name: getattr(job, name) for name in Job.__dataclass_fields__}
        return cls(**(fields | {"local": here} | more))

    def of_role(self: _Starter, role: str) -> _Starter:
        return replace(
            super().of_role(role), variables=self.variables.union(self.role_variables.get(role, ()))
        )

    @property
    def hears_late(self) -> bool:
        return True

    @property
    @abstractmethod
    def rank_variable(self) -> str:
        """In which a process that was started finds its rank."""

    @property
    @abstractmethod
    def splitter(self) -> MakeSplitter:
        """Cuts what the starter writes into lines of ranks."""

    @property
    def deliver(self) -> Deliver:
        """How a signal for the workers reaches them by way of the starter."""
        return os.kill

    @abstractmethod
    def start(self, ranks: int, environment: Mapping[str, str], command: Sequence[str]) -> list[str]:
        """Returns the starter's command."""

    def processes(self, scheduler: str) -> list[Process]:
        own = self.of_role("worker")
        environment = own.workers_environment(scheduler, beside=self.workers)
        command = own.start(self.workers, environment, [*self.looking, *self.command])
        processes = [Process("worker", None, self.local, command, environment, self.splitter, self.deliver)]
        if self.servers:
            own = self.of_role("server")
            server = own._node_command("server", scheduler) + own._options_of_all_servers()
            run = f'trap \'\' {self.servers_ignore}; exec "$0" "$@" --rank "${self.rank_variable}"'
            with_rank = ["sh", "-c", run, *server]
            command = own.start(self.servers, own.environment, [*self.looking, *with_rank])
            processes.insert(0, Process("server", None, self.local, command, own.environment, self.splitter))
        return processes

    def _options_of_all_servers(self) -> list[str]:
        """Elsewhere: no name or address that only this machine has, unless --env gives it to all."""
        if not self.elsewhere:
            return self._server_options(self.settings.host_id) + self._bind_options(self.local)
        options = self._server_options(
            self.settings.host_id if "GRADWIRE_HOST_ID" in self.variables else None
        )
        if self.settings.bind_host and not self.variables.isdisjoint(
            ("GRADWIRE_BIND_HOST", "DMLC_NODE_HOST")
        ):
            return [*options, "--bind-host", self.settings.bind_host]
        return [*options, "--interface", self.settings.interface] if self.settings.interface else options
