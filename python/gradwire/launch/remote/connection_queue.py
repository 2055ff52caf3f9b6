"""ConnectionQueue: which processes of a job ssh is still connecting, which wait for that, and which get another try.

sshd refuses connections when too many of them are not authenticated yet. So a host gets a few at a time, and a process
that ssh could not connect is tried once more. Processes on other kinds of hosts pass through.

Threading: one thread at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire.launch.remote.ssh import GREETING, LAUNCHES_AT_ONCE, SshHost

if TYPE_CHECKING:
    from gradwire.launch.child import Child, Host, Line
    from gradwire.launch.job import Process


class ConnectionQueue:
    """
    Attributes:
        waiting: processes that wait for their turn to connect, in order.
    """

    def __init__(self) -> None:
        self.waiting: list[Process] = []
        self._connecting: dict[Child, Process] = {}
        self._retried: list[Process] = []

    def holds_back(self, process: Process) -> bool:
        """Returns True, and has the process wait, if sshd of its host might refuse one more connection."""
        if self._is_busy(process.host):
            self.waiting.append(process)
            return True
        return False

    def _is_busy(self, host: Host) -> bool:
        names = [other.host.name for other in self._connecting.values() if isinstance(other.host, SshHost)]
        return isinstance(host, SshHost) and names.count(host.name) >= LAUNCHES_AT_ONCE

    def begin(self, child: Child, process: Process) -> None:
        """Says that a process was started. By ssh, it connects from now on."""
        if isinstance(process.host, SshHost):
            self._connecting[child] = process

    def is_connecting(self, child: Child) -> bool:
        return child in self._connecting

    def take_greeting(self, child: Child, line: Line) -> bool:
        """Returns True for the line whose end, GREETING, says that ssh has connected. It comes once."""
        if child not in self._connecting or not line.text.endswith(GREETING):
            return False
        del self._connecting[child]
        return True

    def take_waiting(self) -> list[Process]:
        """Returns the processes that wait, which then no longer do: each is started, or held back again."""
        waiting, self.waiting = self.waiting, []
        return waiting

    def end(self, child: Child) -> Process | None:
        """Says that a child has ended. Returns its process if ssh had not connected it."""
        return self._connecting.pop(child, None)

    def retry(self, process: Process) -> bool:
        """Has a process wait for another try. Returns False if it has had one."""
        if process in self._retried:
            return False
        self._retried.append(process)
        self.waiting.append(process)
        return True
