"""MXNet 1.9.1 as a peer of `gradwire bench ps`: its own environment, made on first use, and its processes' settings."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

PACKAGES = ("mxnet==1.9.1", "numpy==1.23.5")  # MXNet's last release, and the last NumPy it can import
_PYTHONS = ("python3.11", "python3.10")  # that NumPy exists for no later one, and rounds.py needs 3.10
_INSTALL_SECONDS = 900


class PeerUnavailable(RuntimeError):
    """The peer cannot be run here; the message says why and what to do."""


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


def _make(home: Path, python: Path) -> None:
    found = next(filter(None, map(shutil.which, _PYTHONS)), None)
    if found is None:
        raise PeerUnavailable(
            f"mxnet: no {', '.join(_PYTHONS)} on PATH, and MXNet 1.9.1 runs on no other: install one, "
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


def free_port(host: str) -> int:
    """Finds a port nobody listens on; MXNet cannot choose one itself."""
    with socket.create_server((host, 0)) as listener:
        return int(listener.getsockname()[1])
