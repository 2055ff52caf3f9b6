"""`gradwire run --launcher yarn`: its service definition against what Hadoop's documentation says, and what is made of
what containers say. Without YARN."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import jsonschema
import pytest
from gradwire.launch.clusters import yarn, yarn_agent
from gradwire.launch.clusters.agent import Failure
from gradwire.launch.clusters.yarn_agent import Tasks, yarnfile
from integration.processes import is_alive, wait_until
from oracle.yarnfile import SERVICE
from python.prepared_jobs import prepared, request

ORDER = {"name": "gradwire-0a", "tasks": 3, "queue": "gpu", "cores": 2, "memory_mb": 2048}


@pytest.mark.parametrize("queue", [None, "gpu"])
def test_a_definition_is_what_yarn_takes(queue: str | None) -> None:
    made = yarnfile(ORDER | {"queue": queue}, "print(1)")
    jsonschema.validate(made, SERVICE)
    (component,) = made["components"]
    assert (component["number_of_containers"], component["restart_policy"]) == (3, "NEVER")
    assert component["resource"] == {"cpus": 2, "memory": "2048"}
    assert made.get("queue") == queue


def test_the_schema_finds_a_wrong_definition() -> None:
    for wrong in ({"name": "Not_a_name"}, {"components": []}, {"restartPolicy": "NEVER"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(yarnfile(ORDER, "") | wrong, SERVICE)


def test_nothing_in_a_definition_is_taken_for_what_yarn_puts_in() -> None:
    """${...} would be a constant, and the launch command goes through bash twice, in double quotes."""
    (component,) = yarnfile(ORDER, "print('${USER} $HOME \"')")["components"]
    (file,) = component["configuration"]["files"]
    assert "$" not in file["properties"]["content"]
    assert re.fullmatch(r"[a-z0-9 ./]+\$\{COMPONENT_ID\}", component["launch_command"])


def test_a_service_is_all_of_a_role_and_no_secret_is_on_a_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "s")
    asked = request("yarn", workers=3, memory=(1 << 30) + 1, cores=4, env={"MINE": "m"})
    job = prepared(asked, monkeypatch)
    server, worker = job.processes("tcp://10.0.0.9:1")
    for process, tasks in ((worker, 3), (server, 1)):
        order = json.loads(process.command[3])
        assert (order["tasks"], order["address"]) == (tasks, "10.0.0.9")
        assert (order["cores"], order["memory_mb"]) == (4, 1025), "no less than was asked for"
        assert {"MINE", "GRADWIRE_JOB_KEY"} <= set(order["variables"])
        assert "SECRET" not in order["variables"]
        assert job.environment["GRADWIRE_JOB_KEY"] not in " ".join(process.command)


NODES = """\
26/01/01 00:00:00 INFO client.RMProxy: Connecting to ResourceManager
Total Nodes:3
         Node-Id\t     Node-State\tNode-Http-Address\tNumber-of-Running-Containers
   node1.lan:45454\t        RUNNING\t   node1.lan:8042\t                           0
   node2.lan:45454\t        RUNNING\t   node2.lan:8042\t                           2
   node3.lan:45454\t           LOST\t   node3.lan:8042\t                           0
"""


def test_only_running_nodes_count() -> None:
    assert yarn._NODE.findall(NODES) == ["node1.lan", "node2.lan"]


class Containers:
    """The submitting side, and connections to it as containers make them."""

    def __init__(self, count: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.failure = Failure(notice_seconds=60)
        self.tasks = Tasks(self._listener, "token", count, self.failure)

    def connect(self, hello: bytes) -> socket.socket:
        connection = socket.create_connection(self._listener.getsockname())
        connection.sendall(hello)
        self.tasks.step()  # it is accepted
        self.tasks.step()  # it is heard
        return connection


def test_lines_and_ends_of_containers(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    containers = Containers(2)
    one = containers.connect(b"token 1\n1 out\n")
    zero = containers.connect(b"token 0\n2 err\n2 \n")
    assert containers.tasks.all_are_here
    one.sendall(b"x 7\n")
    containers.tasks.step()
    zero.close()
    containers.tasks.step()
    assert (containers.failure.code, containers.tasks.all_have_ended) == (7, True)
    out, err = capfdbinary.readouterr()
    assert out == b"1: out\n"
    assert err == (
        b"0: err\n0: \nrank 1 ended with exit code 7\n"
        b"rank 0 ended with exit code 1: its container has gone without a word\n"
    )


def test_a_service_that_yarn_gives_up_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "yarn"
    program.write_text("""#!/bin/sh\necho INFO some words\necho '{"name": "'$3'", "state": "FAILED"}'\n""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(yarn_agent, "_STATUS_SECONDS", 0.0)
    containers = Containers(2)
    containers.connect(b"token 1\n")
    assert yarn_agent.watch(containers.tasks, "gradwire-0a", containers.failure) == 1
    assert "YARN reports service gradwire-0a as FAILED" in capfd.readouterr().err


@pytest.mark.parametrize(
    "hello",
    [
        b"wrong 0\n",
        b"token 2\n",
        b"token -1\n",
        b"token x\n",
        b"token\n",
        b"\n",
        b"x" * 1000,
        b"token " + b"9" * 5000 + b"\n",
    ],
    ids=["token", "rank", "sign", "text", "none", "empty", "long", "many digits"],
)
def test_who_is_none_of_ours_is_sent_away(hello: bytes) -> None:
    containers = Containers(2)
    stranger = containers.connect(hello)
    stranger.settimeout(10)
    assert stranger.recv(1) == b""
    assert not containers.tasks.all_are_here
    assert containers.failure.code == 0


def test_a_rank_is_taken_once() -> None:
    containers = Containers(2)
    first = containers.connect(b"token 0\n")
    assert containers.connect(b"token 0\n").recv(1) == b""
    first.settimeout(0.1)
    with pytest.raises(socket.timeout):
        first.recv(1)


@contextmanager
def task(words: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket, BinaryIO]]:
    """The program of a container, as it is sent: by itself, with its order put in; and the connection that it makes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program = yarn_agent.program_of({"variables": []}, listener.getsockname()[:2], "token", words)
        with subprocess.Popen([sys.executable, "-I", "-S", "-c", program, "3"]) as process:
            try:
                connection, _ = listener.accept()
                connection.settimeout(30)
                with connection, connection.makefile("rb") as said:
                    yield process, connection, said
            finally:
                process.kill()


def test_the_end_of_the_connection_is_the_tasks_own() -> None:
    with task(["sh", "-c", "echo running; sleep 60"]) as (process, connection, said):
        assert [said.readline(), said.readline()] == [b"token 3\n", b"1 running\n"]
        connection.shutdown(socket.SHUT_WR)
        assert process.wait(300) == 143


def test_a_killed_task_takes_with_it_all_that_it_has_started() -> None:
    """YARN ends a container by killing its first process's group, of which what that has started is none."""
    with task(["sh", "-c", "sleep 60 & echo $$ $!; wait"]) as (process, _, said):
        assert said.readline() == b"token 3\n"
        pids = [int(word) for word in said.readline().split()[1:]]
        assert len(pids) == 2
        try:
            process.kill()
            wait_until(lambda: not any(map(is_alive, pids)), 5, f"{pids} to end")
        finally:
            for pid in filter(is_alive, pids):
                os.kill(pid, signal.SIGKILL)
