"""How each system's job is started on the hosts of a row.

Threading: one thread, the caller's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gradwire.bench import peer_mxnet, peer_openmpi
from gradwire.bench.hosts import Network, Watched
from gradwire.child import Line
from gradwire.job import free_port
from gradwire.launch import JobResult, run_job

from replay.rows import Row
from replay.scale import Scale

_FOLDER = Path(__file__).resolve().parent
_BIGARRAY_BOUND = 1_000_000  # MXNet's own default, elements
# The model's bytes are few, and OpenMPI chooses another algorithm for few bytes than it would at full size.
_RING = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_allreduce_algorithm": "4"}


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


def start(launch: Launch) -> JobResult:
    """Runs the job to its end."""
    return {"gradwire": _gradwire, "mxnet": _mxnet, "openmpi": _openmpi, "gloo": _gloo}[launch.row.system](
        launch
    )


def _python(worker: str, launch: Launch) -> list[str]:
    return [sys.executable, str(_FOLDER / worker), launch.folder]


def _gradwire(launch: Launch) -> JobResult:
    # The row counts, not what the user's shell has set.
    unset = {f"GRADWIRE_{name}": "" for name in ("COMPRESSION", "HIERARCHY", "PLACEMENT")}
    return run_job(
        _python("gradwire_worker.py", launch),
        launch.row.workers,
        launch.row.servers,
        env=unset | launch.scale.engine_settings(),
        placement=launch.network.place,
        output=launch.output,
        timeout=launch.timeout,
    )


def _openmpi(launch: Launch) -> JobResult:
    command = _python("openmpi_worker.py", launch)
    return peer_openmpi.run(command, launch.row.workers, launch.network, _RING, launch.output, launch.timeout)


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

    worker, bound = str(_FOLDER / "mxnet_worker.py"), max(1, round(_BIGARRAY_BOUND / launch.scale.factor))
    return run_job(  # to the launcher, MXNet's scheduler and servers are workers as well
        [str(launch.mxnet_python), "-I", worker, launch.folder, str(bound)],
        1 + row.servers + row.workers,
        0,
        worker_env=environment,
        placement=lambda role, process: host(process),
        output=launch.output,
        timeout=launch.timeout,
    )
