"""How each system's job is started on the hosts of a row, and what it is told there.

Threading: one thread, the caller's, whose environment start() changes while a job runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gradwire.bench import peer_mxnet, peer_openmpi
from gradwire.bench.hosts import Network, Watched
from gradwire.launch.child import Line
from gradwire.launch.rendezvous import free_port
from gradwire.launch.supervisor import JobResult, run_job

from replay.rows import Row
from replay.scale import Scale

_FOLDER = Path(__file__).resolve().parent
_BIGARRAY_BOUND = 1_000_000  # MXNet's own default, elements
# The model's bytes are few, and OpenMPI chooses another algorithm for few bytes than it would at full size.
_RING = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_allreduce_algorithm": "4"}
# Settings of these systems that the user's shell may hold: a row is what its name says, whoever runs it.
_SETTINGS = ("GRADWIRE_", "BYTEPS_", "DMLC_", "PS_", "MXNET_", "OMPI_MCA_", "GLOO_", "TORCH_")
_PROGRAM = "GRADWIRE_SERVER_PROGRAM"  # where it is, not what it does


@dataclass(frozen=True)
class Launch:
    """One job to be started. output: takes its lines. timeout: in seconds. mxnet_python: where MXNet is, if wanted."""

    row: Row
    scale: Scale
    folder: str
    network: Network
    output: Callable[[Line], None]
    timeout: float
    mxnet_python: Path | None = None


def settings_of(row: Row, scale: Scale) -> dict[str, str]:
    """Returns what all processes of a row are told, beside who they are, as environment variables."""
    if row.system == "gradwire":
        threads = {"GRADWIRE_CODEC_THREADS": "1", "GRADWIRE_SERVER_THREADS": "1"}  # as costs are measured
        channel = {"GRADWIRE_STREAMS": "1", "GRADWIRE_CHECKSUM": "auto", "GRADWIRE_ENCRYPT": "off"}
        return threads | channel | scale.engine_settings()
    if row.system == "mxnet":
        return {"MXNET_KVSTORE_BIGARRAY_BOUND": str(max(1, round(_BIGARRAY_BOUND / scale.factor)))}
    return dict(_RING) if row.system == "openmpi" else {}


def start(launch: Launch) -> JobResult:
    """Runs the job to its end."""
    starts = {"gradwire": _gradwire, "mxnet": _mxnet, "openmpi": _openmpi, "gloo": _gloo}
    with _without_the_users():
        return starts[launch.row.system](launch)


@contextmanager
def _without_the_users() -> Iterator[None]:
    """Takes all systems' settings from this process's environment, which its jobs inherit, and gives them back."""
    names = [name for name in os.environ if name.startswith(_SETTINGS) and name != _PROGRAM]
    taken = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(taken)


def _python(worker: str, launch: Launch) -> list[str]:
    return [sys.executable, str(_FOLDER / worker), launch.folder]


def _gradwire(launch: Launch) -> JobResult:
    return run_job(
        _python("gradwire_worker.py", launch),
        launch.row.workers,
        launch.row.servers,
        env=settings_of(launch.row, launch.scale),
        placement=launch.network.place,
        output=launch.output,
        timeout=launch.timeout,
    )


def _openmpi(launch: Launch) -> JobResult:
    command = _python("openmpi_worker.py", launch)
    told = settings_of(launch.row, launch.scale)
    return peer_openmpi.run(command, launch.row.workers, launch.network, told, launch.output, launch.timeout)


def _gloo(launch: Launch) -> JobResult:
    network = launch.network
    meeting = network.meeting(launch.row.workers)

    def environment(rank: int) -> dict[str, str]:
        interface = network.interface(network.place("worker", rank))
        return meeting(rank) | {"GLOO_SOCKET_IFNAME": interface, "TORCH_CPP_LOG_LEVEL": "ERROR"}

    return run_job(
        _python("gloo_worker.py", launch),
        launch.row.workers,
        0,
        worker_env=environment,
        placement=network.place,
        output=launch.output,
        timeout=launch.timeout,
    )


def _mxnet(launch: Launch) -> JobResult:
    assert launch.mxnet_python is not None
    row, network = launch.row, launch.network
    root_address = network.place("scheduler", 0).address
    root = root_address, free_port(root_address)

    def host(process: int) -> Watched:
        return network.place(*peer_mxnet.role_of(process, row.servers))

    def environment(process: int) -> Mapping[str, str]:
        here = host(process)
        return peer_mxnet.environment(
            process, row.workers, row.servers, root, here.address, network.interface(here)
        )

    return run_job(  # to the launcher, MXNet's scheduler and servers are workers as well
        [str(launch.mxnet_python), "-I", str(_FOLDER / "mxnet_worker.py"), launch.folder],
        1 + row.servers + row.workers,
        0,
        env=settings_of(row, launch.scale),
        worker_env=environment,
        placement=lambda role, process: host(process),
        output=launch.output,
        timeout=launch.timeout,
    )
