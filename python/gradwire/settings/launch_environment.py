"""Which launcher has started this process, as its environment tells; and where workers meet who were told no place.

The settings read the same variables, in the same order (definitions.py): a launcher counts only with all of them,
so that a rank of one is never taken with the world size of another.
"""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections.abc import Mapping

from gradwire.settings.endpoints import written

# The first whose variables are all set is who started this process: the innermost launcher of several.
_LAUNCHERS = {
    "gradwire run": ("GRADWIRE_RANK", "GRADWIRE_NUM_WORKERS"),
    "gradwire run --launcher mpi": ("GRADWIRE_NUM_WORKERS", "OMPI_COMM_WORLD_RANK"),
    "gradwire run --launcher slurm": ("GRADWIRE_NUM_WORKERS", "SLURM_STEP_ID", "SLURM_PROCID"),
    "a DMLC tracker": ("DMLC_ROLE", "DMLC_NUM_WORKER"),
    "torchrun": ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"),
    "hand": ("RANK", "WORLD_SIZE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "srun": ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS"),
}
_LOOPBACK = "127.0.0.1"
_FIRST_PORT, _PORTS = 20_000, 12_000  # below those that systems hand out by themselves


_NEIGHBOURS = 1_000  # ports next to MASTER_PORT that people give to further jobs


def launcher(environ: Mapping[str, str] | None = None) -> tuple[str, tuple[str, ...]] | None:
    """Returns the launcher's name and the variables it is known by; None: nobody's job."""
    environ = os.environ if environ is None else environ
    for name, variables in _LAUNCHERS.items():
        if all(environ.get(variable) for variable in variables):
            return name, variables
    return None


def tell(store: str, workers: int, *, has_ranks_of_a_group: bool = False) -> None:
    """Says on stderr who was taken for the launcher, or that ranks are those of torch's process group; `gradwire run`
    has said so itself.
    """
    if has_ranks_of_a_group:
        whose = "with the ranks of torch's process group"
    elif (found := launcher()) is not None and not found[0].startswith("gradwire run"):
        name, variables = found
        whose = f"started by {name} ({', '.join(variables)})"
    else:
        return
    print(f"gradwire: store {store!r} of {workers} workers, {whose}", file=sys.stderr, flush=True)


def meeting_of_one_host(size: str, local_size: str, job: str) -> str | None:
    """Where the ranks of one mpirun meet if all are on one host; None: they are on several, and mpirun names none.

    job: what tells this mpirun from others on the host.
    """
    return written(_LOOPBACK, _port(job)) if size == local_size else None


def meeting_of_srun(nodes: str, job: str, step: str) -> str:
    """Where the tasks of a Slurm step meet: on its first node, which has task 0, at a port that the step's id gives; on
    loopback where it has no other.

    nodes: as Slurm writes them, "node[01-03,7],gpu2".
    """
    is_one = "," not in nodes and "[" not in nodes
    return written(_LOOPBACK if is_one else first_node(nodes), _port(f"{job}.{step}"))


def meeting_beside_torch(host: str, port: str) -> str:
    """Where ranks meet that were given MASTER_ADDR and MASTER_PORT: on that host, at a port that MASTER_PORT gives.
    MASTER_PORT itself is torch's, and those next to it are those of the next jobs.
    """
    if not port.isdecimal():
        return written(host, port)
    own = _port(f"MASTER_PORT={int(port)}")
    if abs(own - int(port)) < _NEIGHBOURS:
        own = _FIRST_PORT + (own - _FIRST_PORT + _PORTS // 2) % _PORTS
    return written(host, own)


def meeting_of_one_machine(host: str, port: str, size: str, local_size: str) -> str | None:
    """As meeting_beside_torch(), where all ranks are on one host; None: they are on several."""
    return meeting_beside_torch(_LOOPBACK, port) if size == local_size else None


# Variables of launchers that say how many processes there are, each its own launcher's word.
_SIZES = (
    "WORLD_SIZE",
    "HOROVOD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "JSM_NAMESPACE_SIZE",
)


def several(workers: int, environ: Mapping[str, str] | None = None) -> str | None:
    """Says how many workers the environment tells of, if several: "4 workers (HOROVOD_SIZE)".

    Args:
        workers: as the settings have them; other launchers than those that they read count, too.
    """
    environ = os.environ if environ is None else environ
    if workers > 1:
        return f"{workers} workers"
    for variable in _SIZES:
        size = environ.get(variable, "")
        if size.isdecimal() and int(size) > 1:
            return f"{size} workers ({variable})"
    return None


def store_of_torchrun(environ: Mapping[str, str] | None = None) -> tuple[str, int] | None:
    """Returns host and port of the store that torchrun serves; None: torchrun has not started this process, or leaves
    the store to rank 0's own process.
    """
    environ = os.environ if environ is None else environ
    found = launcher(environ)
    if found is None or found[0] != "torchrun" or environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT", "")
    return (host, int(port)) if host and port.isdecimal() else None


def first_node(nodes: str) -> str:
    """Returns "node01" of "node[01-03,7]-ib,gpu2"."""
    match = re.match(r"([^\[,]*)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    assert match is not None  # it matches everything
    return "".join(part for part in match.groups() if part)


def _port(job: str) -> int:
    return _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS
