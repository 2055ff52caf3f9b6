"""MPI: where gradwire's library for it lies, and what it says here. Nothing is loaded before it is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gradwire import _core

_DESCRIBE = (
    "import json; from gradwire import _core; from gradwire.stores import mpi; "
    "print(json.dumps(_core.describe_mpi(mpi.library())))"
)
_LAUNCHED = ("OMPI_", "PMIX_", "PMI_", "ORTE_")  # what mpirun tells its processes


class MpiUnavailable(Exception):
    """MPI cannot be used here; says why."""


def library() -> str:
    """Returns the path of libgradwire_mpi.so, which is installed beside the core where MPI was found."""
    return str(Path(_core.__file__).with_name("libgradwire_mpi.so"))


def describe(seconds: float = 30.0) -> dict[str, str]:
    """Initialises MPI in a process of its own and returns what it says.

    Args:
        seconds: how long that may take.

    Returns: "version": MPI's own text; "thread_level": "MPI_THREAD_MULTIPLE" or less.

    Raises: MpiUnavailable: the library is not there, or MPI does not work here.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHED)}
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _DESCRIBE],
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise MpiUnavailable(f"MPI was not initialised within {seconds:g} s") from None
    if tried.returncode != 0:
        last = (tried.stderr.strip() or f"its process ended with {tried.returncode}").splitlines()[-1]
        raise MpiUnavailable(last.removeprefix("gradwire._core.TransportError: ").removeprefix("mpi: "))
    description: dict[str, str] = json.loads(tried.stdout.splitlines()[-1])
    return description
