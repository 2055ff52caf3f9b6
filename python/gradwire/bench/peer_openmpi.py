"""OpenMPI: as a peer, MPI_Allreduce on the gradient itself, and as what starts those of our stores that need mpirun.

On netlab's hosts mpirun runs outside of them and enters each by rsh_agent.py, as it would enter a machine by ssh.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gradwire.bench.hosts import Network
from gradwire.bench.plan import AllReducePlan
from gradwire.bench.rounds import Task
from gradwire.bench.system import PeerUnavailable, System
from gradwire.launch.child import Line
from gradwire.launch.supervisor import JobResult, run_job

# Processes share cores here: one that polls must let others run, and none may be tied to a core on the belief that
# its host is a machine of its own.
_SHARED_CORES = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
# Who the launcher says a process is: it started one mpirun, and ranks are MPI's.
_NOT_INHERITED = ("GRADWIRE_ROLE", "GRADWIRE_RANK", "GRADWIRE_NUM_WORKERS", "GRADWIRE_NUM_SERVERS")


def systems(plan: AllReducePlan) -> list[System]:
    """Lists the one system that it is.

    Raises: PeerUnavailable: mpirun or mpi4py is missing, or they do not fit each other.
    """
    _require_mpi()

    def start(network: Network, task: Task, output: Callable[[Line], None], timeout: float) -> JobResult:
        command = [sys.executable, "-m", "gradwire.bench.openmpi_worker", task.text()]
        return run(command, plan.ranks, network, {}, output, timeout)

    size = plan.gradient_bytes
    fused = True if plan.tensors > 1 else None
    return [System("openmpi", "none", "none", "none", size, size, start, transport="tcp", fused=fused)]


def run(
    command: Sequence[str],
    ranks: int,
    network: Network,
    environment: Mapping[str, str],
    output: Callable[[Line], None],
    timeout: float,
) -> JobResult:
    """Runs command on every worker's host under one mpirun."""
    root = network.place("scheduler", 0)
    hosts = [network.place("worker", rank).address for rank in range(ranks)]
    return run_job(
        mpirun(command, hosts, network.lab, root.address),
        1,
        0,
        env=environment,
        placement=lambda role, rank: root,
        output=output,
        timeout=timeout,
    )


def mpirun(command: Sequence[str], hosts: Sequence[str], lab: str | None, root: str) -> list[str]:
    """Returns the command that starts one rank on each of hosts, all traffic by TCP over their links.

    lab: the netlab that has the hosts; None: they are this machine. root: the address here that they reach.
    """
    words = ["mpirun", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), *_SHARED_CORES]
    words += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
    if lab is None:
        words += ["--mca", "btl_tcp_if_include", "lo", "--host", f"localhost:{len(hosts)}"]
    else:
        subnet = str(ipaddress.ip_network(f"{root}/24", strict=False))
        agent = [sys.executable, str(Path(__file__).with_name("rsh_agent.py")), lab]
        words += ["--mca", "plm_rsh_agent", shlex.join(agent), "--mca", "plm_rsh_no_tree_spawn", "1"]
        words += ["--mca", "oob_tcp_if_include", subnet, "--mca", "btl_tcp_if_include", subnet]
        words += ["--host", ",".join(hosts)]
    unset = [word for name in _NOT_INHERITED for word in ("-u", name)]
    return [*words, "-np", str(len(hosts)), "env", *unset, *command]


def _require_mpi() -> None:
    if shutil.which("mpirun") is None:
        raise PeerUnavailable("openmpi: no mpirun on PATH: install openmpi-bin, or leave the peer out")
    tried = subprocess.run(
        [sys.executable, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if tried.returncode != 0:
        last = (tried.stderr.strip() or "no output").splitlines()[-1]
        raise PeerUnavailable(f"openmpi: {sys.executable} has no working mpi4py ({last}): install mpi4py")
    if not tried.stdout.startswith("Open MPI"):
        raise PeerUnavailable(f"openmpi: mpi4py uses another MPI: {tried.stdout.splitlines()[0]}")
