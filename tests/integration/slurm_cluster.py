"""A Slurm of one node on this machine: its daemons as ordinary processes, with ports, keys and state of their own."""

from __future__ import annotations

import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gradwire.launch.rendezvous import free_port
from integration import daemons
from integration.daemons import ask, daemon, wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "scontrol", "sinfo")
CPUS = 64
"""Said to Slurm, whatever the machine has: jobs of the tests wait for each other's time, not for processors."""


def why_not() -> str | None:
    """Returns why no Slurm can be started here; None: it can."""
    return daemons.why_not(PROGRAMS, "slurmctld, slurmd, slurm-client and munge", "slurmd")


@dataclass(frozen=True)
class Cluster:
    """node: its only one's name. environment: what its clients need."""

    node: str
    environment: dict[str, str]


@contextmanager
def slurm_cluster() -> Iterator[Cluster]:
    """Starts it, and ends its daemons and all that they have started."""
    with ExitStack() as stack:
        # Not pytest's folder: a socket's path is short, and munged wants a folder that others can enter.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        folder.chmod(0o711)
        node = socket.gethostname().partition(".")[0]
        configuration = _write(folder, node)
        environment = {"SLURM_CONF": str(configuration)}
        munged = [
            f"--{name}={folder}/munge.{name.partition('-')[0]}"
            for name in ("pid-file", "log-file", "seed-file")
        ]
        munged += [f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket"]
        stack.enter_context(daemon(folder, environment, "munged", "--foreground", "--force", *munged))
        wait_for(lambda: (folder / "munge.socket").exists(), folder, "Slurm")
        stack.enter_context(daemon(folder, environment, "slurmctld", "-D"))
        stack.enter_context(daemon(folder, environment, "slurmd", "-D", "-N", node))
        wait_for(lambda: _is_idle(environment), folder, "Slurm")
        yield Cluster(node, environment)


def _write(folder: Path, node: str) -> Path:
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    configuration = folder / "slurm.conf"
    configuration.write_text(f"""\
ClusterName=test
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={free_port("127.0.0.1")}
SlurmdPort={free_port("127.0.0.1")}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait=2
NodeName={node} NodeAddr=127.0.0.1 CPUs={CPUS} State=UNKNOWN
PartitionName=all Nodes={node} Default=YES MaxTime=INFINITE State=UP
""")
    return configuration


def _is_idle(environment: dict[str, str]) -> bool:
    return ask(environment, "sinfo", "--noheader", "--format=%T").stdout.strip() == "idle"
