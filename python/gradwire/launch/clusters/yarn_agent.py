"""The local process of `gradwire run --launcher yarn` for a service.

It launches the service, shows what its containers write, ends with the exit code of the first failure, and destroys it.

    python -m gradwire.launch.clusters.yarn_agent '{"name": ..., "tasks": ...}' CMD...
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import os
import secrets
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.launch.clusters import agent, yarn_task
from gradwire.launch.remote import bundle

_LOOK_SECONDS = 1.0
_STATUS_SECONDS = 15.0  # between two looks at a service whose containers have not all come: each starts a JVM
_ASK_SECONDS = 120
_LONGEST_HELLO = 128  # bytes; who says more than that is none of ours
_OVER = ("FAILED", "STOPPED")


def yarnfile(order: Mapping[str, Any], program: str) -> dict[str, Any]:
    """Returns the definition of a service. program: Python that each container runs, with its rank as argument.

    Source: Hadoop's "YARN Service API" (Service, Component, Resource, ConfigFile) and "YARN Service Configurations"
    (TEMPLATE files, the constant COMPONENT_ID). The program is packed: in a file ${...} means constants, and the
    launch command goes through two shells.
    """
    packed = base64.b64encode(program.encode()).decode("ascii")
    content = f'import base64\nexec(base64.b64decode("{packed}"))\n'
    component = {
        "name": "task",
        "number_of_containers": order["tasks"],
        "restart_policy": "NEVER",
        "launch_command": "python3 conf/task.py ${COMPONENT_ID}",
        "resource": {"cpus": order["cores"], "memory": str(order["memory_mb"])},
        "configuration": {
            "files": [{"type": "TEMPLATE", "dest_file": "task.py", "properties": {"content": content}}]
        },
    }
    queue = {} if order["queue"] is None else {"queue": order["queue"]}
    return {"name": order["name"], "version": "1.0.0", **queue, "components": [component]}


def program_of(order: Mapping[str, Any], address: tuple[str, int], token: str, words: Sequence[str]) -> str:
    """Returns the program of a container."""
    task = {
        "address": list(address),
        "token": token,
        "environment": {name: os.environ[name] for name in order["variables"]},
        "ranks": list(agent.RANK_VARIABLES),
        "command": list(words),
    }
    return bundle.program(yarn_task, ORDER=task)


def cancel(name: str) -> None:
    """Destroys the service: its containers, and what YARN stores of it, with the job's key."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(["yarn", "app", "-destroy", name], capture_output=True, timeout=_ASK_SECONDS)


def launch(definition: Mapping[str, Any]) -> int:
    """Has YARN start a service. Returns yarn's exit code."""
    with tempfile.NamedTemporaryFile("w", prefix="gradwire-", suffix=".json") as file:  # for its owner alone
        json.dump(definition, file)
        file.flush()
        words = ["yarn", "app", "-launch", definition["name"], file.name]
        return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=2, check=False).returncode


def state_of(name: str) -> str:
    """Returns the state of the service that YARN reports; "" if its output cannot be read."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError):
        words = ["yarn", "app", "-status", name]
        asked = subprocess.run(words, capture_output=True, text=True, timeout=_ASK_SECONDS, check=False)
        return str(json.loads(asked.stdout[asked.stdout.index("{") :]).get("state", ""))
    return ""


class Task:
    """One container's connection. rank None: it has not said yet who it is."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rank: int | None = None
        self.code: int | None = None
        self._pending = b""

    def read(self) -> list[bytes] | None:
        """Returns the lines that have come; None: it has closed."""
        try:
            data = self.connection.recv(1 << 16)
        except OSError:
            data = b""
        *lines, self._pending = (self._pending + data).split(b"\n")
        if self.rank is None and len(self._pending) > _LONGEST_HELLO:
            return None
        return lines if data else None


class Tasks:
    """All containers of a service, as they connect, write and end."""

    def __init__(self, listener: socket.socket, token: str, count: int, failure: agent.Failure) -> None:
        self._failure = failure
        self._token = token.encode()
        self._count = count
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._seen: dict[int, Task] = {}

    def close(self) -> None:
        """Closes all connections, at which all tasks end."""
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    @property
    def all_are_here(self) -> bool:
        return len(self._seen) == self._count

    @property
    def all_have_ended(self) -> bool:
        return self.all_are_here and all(task.code is not None for task in self._seen.values())

    def step(self) -> None:
        """Waits for one batch of events, a second at most, and handles it."""
        for key, _ in self._selector.select(_LOOK_SECONDS):
            if key.data is None:
                assert isinstance(key.fileobj, socket.socket)
                with contextlib.suppress(OSError):  # who has gone again, or is one too many for this process
                    connection, _ = key.fileobj.accept()
                    self._selector.register(connection, selectors.EVENT_READ, Task(connection))
            else:
                self._on_data(key.data)

    def _on_data(self, task: Task) -> None:
        lines = task.read()
        if lines is None:
            self._on_close(task)
            return
        for line in lines:
            if task.rank is None:
                if not self._admit(task, line):
                    self._on_close(task)
                    return
            elif line.startswith(b"x ") and line[2:].isdigit():
                self._on_end(task, int(line[2:]))
            else:
                agent.write_line(2 if line.startswith(b"2 ") else 1, task.rank, line[2:])

    def _admit(self, task: Task, hello: bytes) -> bool:
        token, _, rank = hello.partition(b" ")
        if len(hello) > _LONGEST_HELLO or not hmac.compare_digest(token, self._token) or not rank.isdigit():
            return False
        if int(rank) >= self._count or int(rank) in self._seen:
            return False
        task.rank = int(rank)
        self._seen[task.rank] = task
        return True

    def _on_close(self, task: Task) -> None:
        self._selector.unregister(task.connection)
        task.connection.close()
        if task.rank is not None and task.code is None:
            self._on_end(task, 1, "its container has gone without a word")

    def _on_end(self, task: Task, code: int, words: str = "") -> None:
        assert task.rank is not None
        task.code = code
        self._failure.hear(task.rank, code, words)


def watch(tasks: Tasks, name: str, failure: agent.Failure) -> int:
    """Waits until all have ended, or one has failed and the others have had their time. Returns its exit code."""
    look_at = time.monotonic() + _STATUS_SECONDS
    while not tasks.all_have_ended and not failure.is_over:
        tasks.step()
        if not tasks.all_are_here and time.monotonic() > look_at:
            if (state := state_of(name)) in _OVER:
                agent.say(f"YARN reports service {name} as {state}; see yarn logs")
                return failure.code or 1
            look_at = time.monotonic() + _STATUS_SECONDS
    return failure.code


def main(order: Mapping[str, Any], words: Sequence[str]) -> int:
    with agent.cancelled_at_the_end(lambda: cancel(order["name"])):
        family = socket.AF_INET6 if ":" in order["address"] else socket.AF_INET
        listener = socket.create_server((order["address"], 0), family=family, backlog=order["tasks"])
        token = secrets.token_hex(16)
        failure = agent.Failure(order["notice_seconds"])
        # Closed before the service is destroyed, which takes YARN seconds.
        with contextlib.closing(Tasks(listener, token, order["tasks"], failure)) as tasks:
            program = program_of(order, listener.getsockname()[:2], token, words)
            if code := launch(yarnfile(order, program)):
                return code
            return watch(tasks, order["name"], failure)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
