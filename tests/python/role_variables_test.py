"""--env-worker and --env-server: what workers or servers alone are told, under every launcher. Nothing is started."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gradwire.launch import launchers
from gradwire.launch.job import Job, Process, make_job
from gradwire.launch.remote.ssh import SshHost
from gradwire.launch.supervisor import run_job
from python.prepared_jobs import prepared, request

ENV = {"ALL": "all", "BOTH": "all"}
ROLE_ENV = {
    "worker": {"WORKER": "w", "BOTH": "w", "OMP_NUM_THREADS": "7"},
    "server": {"SERVER": "s", "BOTH": "s", "GRADWIRE_SERVER_THREADS": "3"},
}
LAUNCHERS = ("local", "ssh", "mpi", "slurm", "sge", "yarn")


def made(launcher: str, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Returns the job that is about to be run, on n1 and n2 where that is not here."""
    hosts = "n1,n2" if launcher in ("ssh", "mpi", "slurm") else None
    return prepared(request(launcher, hosts=hosts, env=ENV, role_env=ROLE_ENV), monkeypatch)


def sent(process: Process) -> set[str] | None:
    """Names of the variables that a process on another host gets; None: all that it has here."""
    words = list(process.command)
    if isinstance(process.host, SshHost):
        return set(launchers.ssh.forwarded(process.environment, process.host.variables))
    if "-x" in words:
        return {after for word, after in itertools.pairwise(words) if word == "-x"}
    if any(word.startswith("gradwire.launch.clusters.") for word in words):
        return set(json.loads(words[3])["variables"])
    return None


def told(process: Process) -> dict[str, str]:
    names = sent(process)
    return {name: text for name, text in process.environment.items() if names is None or name in names}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_role_is_told_its_own_and_what_all_are(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORKER", "SERVER"):
        monkeypatch.setenv(name, "of this machine")
    processes = made(launcher, monkeypatch).processes("tcp://10.0.0.9:1")
    assert {process.role for process in processes} == {"worker", "server"}
    for process in processes:
        found, own = told(process), ENV | ROLE_ENV[process.role]
        assert {name: found.get(name) for name in own} == own
        other = "SERVER" if process.role == "worker" else "WORKER"
        assert found.get(other) == ("of this machine" if sent(process) is None else None)
        if process.role == "server":
            words = list(process.command)
            assert words[words.index("--threads") + 1] == "3", "servers take settings by flags"


def test_pods_of_each_role_are_told_their_own() -> None:
    asked = request("kubernetes", image="x", env=ENV, role_env=ROLE_ENV)
    found = {}
    for item in json.loads(launchers.manifest(asked))["items"]:
        if item["kind"] == "Job":
            (container,) = item["spec"]["template"]["spec"]["containers"]
            found[container["name"]] = {row["name"]: row.get("value") for row in container["env"]}
            if container["name"] == "server":
                assert container["command"][container["command"].index("--threads") + 1] == "3"
    for role, own in {**ROLE_ENV, "scheduler": {}}.items():
        assert (ENV | own).items() <= found[role].items()
    assert "SERVER" not in found["worker"]
    assert "WORKER" not in found["server"]
    assert not {"SERVER", "WORKER"} & set(found["scheduler"])


def test_servers_listen_on_the_interface_that_was_given_on_other_hosts_too() -> None:
    there = SshHost("n1", "10.0.0.1", ("ssh",), "/job")

    def words_of_server(**variables: Any) -> str:
        job = make_job(["true"], 1, 1, placement=lambda role, rank: there, **variables)
        return " ".join(job.processes("tcp://10.0.0.9:1")[0].command)

    assert words_of_server().endswith("--bind-host 10.0.0.1")
    assert words_of_server(env={"GRADWIRE_INTERFACE": "eth7"}).endswith("--interface eth7")
    of_servers = {"server": {"GRADWIRE_INTERFACE": "eth7"}}
    assert words_of_server(role_env=of_servers).endswith("--interface eth7")


def test_a_program_is_found_where_the_workers_look(tmp_path: Path) -> None:
    program = tmp_path / "of-workers-alone"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    own = {"worker": {"PATH": f"{tmp_path}:{os.environ['PATH']}"}}
    with pytest.raises(FileNotFoundError, match="of-workers-alone is not a program"):
        make_job([program.name], 1, 0)
    assert run_job([program.name], 1, 0, role_env=own).exit_code == 7


def test_who_a_process_is_and_a_place_of_its_own_count_more() -> None:
    own = {"worker": {"DMLC_ROLE": "server", "RANK": "9", "BOTH": "w"}}
    job = make_job(["true"], 2, 1, worker_env=lambda rank: {"BOTH": f"rank {rank}"}, role_env=own)
    worker = job.processes("tcp://10.0.0.9:1")[-1]
    assert (worker.environment["DMLC_ROLE"], worker.environment["BOTH"]) == ("worker", "rank 1")
    assert worker.environment["RANK"] == "1"


def test_servers_that_listen_beyond_this_machine_are_encrypted() -> None:
    key = "GRADWIRE_JOB_KEY"
    assert key not in make_job(["true"], 1, 1).environment
    assert key in make_job(["true"], 1, 1, role_env={"server": {"DMLC_INTERFACE": "eth7"}}).environment
    assert key in make_job(["true"], 1, 1, role_env={"worker": {"GRADWIRE_BIND_HOST": "0.0.0.0"}}).environment


@pytest.mark.parametrize(
    ("servers", "role_env", "text"),
    [
        (0, {"server": {"A": "b"}}, "--env-server A: no server is started here: give -s 1 or more"),
        (
            1,
            {"worker": {"GRADWIRE_STREAMS": "2"}},
            "--env-worker GRADWIRE_STREAMS: all processes of a job must have the same value: give it by --env",
        ),
        (1, {"server": {"GRADWIRE_SERVER_THREADS": "x"}}, "GRADWIRE_SERVER_THREADS: 'x' is not valid"),
        (1, {"worker": {"GRADWIRE_JOB_KEY": "k"}}, "GRADWIRE_JOB_KEY was given for the job's processes"),
    ],
)
def test_misuse(servers: int, role_env: Mapping[str, Mapping[str, str]], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_job(["true"], 1, servers, role_env=role_env)
