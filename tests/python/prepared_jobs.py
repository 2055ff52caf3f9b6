"""What `gradwire run` is asked for, and the job that it makes of that, which is not started: for hosts that are not
here."""

from __future__ import annotations

from typing import Any

import pytest
from gradwire.launch import launchers
from gradwire.launch import mpi as mpi_launch
from gradwire.launch import slurm as slurm_launch
from gradwire.launch.clusters import cluster_job
from gradwire.launch.clusters.sge import SgeJob
from gradwire.launch.clusters.yarn import YarnJob
from gradwire.launch.job import Job, make_job

HERE = "10.0.0.9"
HOSTS = {"n1": "10.0.0.1", "n2": "10.0.0.2"}


def request(launcher: str, **options: Any) -> launchers.Request:
    """For 2 workers and 1 server, and nothing else, where options do not say otherwise."""
    given = {"command": ["true"], "workers": 2, "servers": 1, "hosts": None, "env": {}, "copy_to": None}
    return launchers.Request(**(given | {"launcher": launcher, "ssh": ("ssh",)} | options))


def prepared(asked: launchers.Request, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Returns the job that is about to be run, on n1 and n2 where that is not here."""
    jobs: list[Job] = []

    def run_job(
        command: Any,
        workers: int,
        servers: int,
        *,
        output: Any,
        report: Any,
        unfinished: Any = None,
        **options: Any,
    ) -> None:
        jobs.append(make_job(command, workers, servers, **options))

    for module in (mpi_launch, slurm_launch, cluster_job):
        monkeypatch.setattr(module, "run_prepared", lambda job, *others: jobs.append(job))
    monkeypatch.setattr(launchers, "run_job", run_job)
    monkeypatch.setattr(launchers.ssh, "resolve", lambda name, ssh: HOSTS[name])
    monkeypatch.setattr(launchers.ssh, "own_address", dict.fromkeys(HOSTS.values(), HERE).__getitem__)
    monkeypatch.setattr(slurm_launch.shutil, "which", lambda name, **_: f"/bin/{name}")
    monkeypatch.setattr(slurm_launch, "nodes", lambda: list(HOSTS))
    monkeypatch.setattr(slurm_launch, "node_address", HOSTS.__getitem__)
    monkeypatch.setattr(cluster_job, "address_of", HOSTS.__getitem__)
    for kind in (SgeJob, YarnJob):
        monkeypatch.setattr(kind, "machines", lambda: list(HOSTS))
    launchers.run(asked, lambda line: None, lambda text: None)
    return jobs[0]
