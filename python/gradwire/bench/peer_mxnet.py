"""MXNet 1.9.1 as a peer: its own environment, made on first use, and its processes' settings."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import gradwire
from gradwire import _core
from gradwire.bench.hosts import Network, Watched
from gradwire.bench.plan import RoundPlan
from gradwire.bench.rounds import Task
from gradwire.bench.system import PeerUnavailable, System, fixed_threshold
from gradwire.compress import Compression
from gradwire.launch.child import Line
from gradwire.launch.rendezvous import free_port
from gradwire.launch.supervisor import JobResult, run_job

PACKAGES = ("mxnet==1.9.1", "numpy==1.23.5")  # MXNet's last release, and the last NumPy it can import
_PYTHONS = ("python3.11", "python3.10")  # that NumPy exists for no later one, and rounds.py needs 3.10
_INSTALL_SECONDS = 900


def systems(
    plan: RoundPlan, servers: int, compressions: Iterable[Compression], say: Callable[[str], None]
) -> list[System]:
    """Lists MXNet without compression, and with its own 2bit where compressions have a 2bit.

    Raises: PeerUnavailable: it cannot be run here.
    """
    python = find_python(plan.mxnet_python, say)
    two_bit = [fixed_threshold(wanted) or 0.5 for wanted in compressions if wanted.spec.startswith("2bit")]
    return [_system(plan, servers, python, threshold) for threshold in (None, *dict.fromkeys(two_bit))]


def _system(plan: RoundPlan, servers: int, python: Path, threshold: float | None) -> System:
    def start(network: Network, task: Task, output: Callable[[Line], None], timeout: float) -> JobResult:
        root_address = network.place("scheduler", 0).address
        root = root_address, free_port(root_address)

        def host(process: int) -> Watched:
            return network.place(*role_of(process, servers))

        def env(process: int) -> Mapping[str, str]:
            here = host(process)
            return environment(process, plan.ranks, servers, root, here.address, network.interface(here))

        return run_job(  # to the launcher, MXNet's scheduler and servers are workers as well
            command(python, task.text()),
            1 + servers + plan.ranks,
            0,
            worker_env=env,
            placement=lambda role, process: host(process),
            output=output,
            timeout=timeout,
        )

    compressed = threshold is not None
    codec = "2bit" if compressed else "none"
    return System(
        name="mxnet",
        codec=codec,
        spec=codec,
        reply="fp32" if compressed else "none",
        pushed=4 * math.ceil(plan.elements / 16) if compressed else plan.gradient_bytes,
        replied=plan.gradient_bytes,
        start=start,
        threshold=threshold,
        servers=servers,
    )


def default_folder() -> Path:
    return Path.home() / ".cache" / "gradwire" / "mxnet"


def find_python(given: Path | None, say: Callable[[str], None], folder: Path | None = None) -> Path:
    """Returns a Python that has MXNet: the one given, or that of an environment which is made here if need be.

    Raises: PeerUnavailable: there is none and it cannot be made.
    """
    if given is not None:
        _require_import(given)
        return given
    home = default_folder() if folder is None else folder
    python, stamp = home / "bin" / "python", home / "complete"
    if not stamp.exists():
        say(f"making an environment for MXNet in {home} (once)")
        shutil.rmtree(home, ignore_errors=True)
        _make(home, python)
        _require_import(python)
        stamp.touch()
    return python


def link_gradwire(folder: Path) -> None:
    """Fills folder with links to this gradwire: as PYTHONPATH, it lets MXNet's Python import that and nothing else that
    is installed here.
    """
    package = folder / "gradwire"
    package.mkdir(parents=True)
    for place in {Path(gradwire.__file__).parent, Path(_core.__file__).parent}:
        for entry in place.iterdir():
            if not entry.name.startswith("__pycache__"):
                (package / entry.name).symlink_to(entry)


def _make(home: Path, python: Path) -> None:
    found = next(filter(None, map(shutil.which, _PYTHONS)), None)
    if found is None:
        raise PeerUnavailable(
            f"mxnet: no {', '.join(_PYTHONS)} on PATH, and MXNet 1.9.1 needs one of these: install one, "
            "or give --mxnet-python"
        )
    _demand([found, "-m", "venv", str(home)], "an environment could not be made")
    _demand(
        [str(python), "-m", "pip", "install", "--quiet", *PACKAGES],
        f"{' '.join(PACKAGES)} could not be installed",
    )


def _require_import(python: Path) -> None:
    _demand([str(python), "-I", "-c", "import mxnet"], f"{python} cannot import mxnet")


def _demand(command: Sequence[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerUnavailable(f"mxnet: {what}: {error}") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise PeerUnavailable(f"mxnet: {what}: {last}")


def command(python: Path, task: str) -> list[str]:
    """What every process of the job runs. -I: it sees neither gradwire's packages nor PYTHONPATH."""
    return [str(python), "-I", str(Path(__file__).with_name("mxnet_worker.py")), task]


def role_of(process: int, servers: int) -> tuple[str, int]:
    """Processes are started in this order: the scheduler, the servers, the workers."""
    if process == 0:
        return "scheduler", 0
    return ("server", process - 1) if process <= servers else ("worker", process - 1 - servers)


def environment(
    process: int, workers: int, servers: int, scheduler: tuple[str, int], address: str, interface: str
) -> dict[str, str]:
    """The variables of one process at address, whose traffic goes over interface."""
    host, port = scheduler
    threads = max(1, len(os.sched_getaffinity(0)) // workers)  # what `gradwire run` gives a worker
    return {
        "OMP_NUM_THREADS": str(threads),
        "DMLC_ROLE": role_of(process, servers)[0],
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_PS_ROOT_URI": host,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": address,
        "DMLC_INTERFACE": interface,
    }
