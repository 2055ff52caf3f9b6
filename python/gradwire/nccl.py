"""NCCL: where it lies, its version, and why it cannot be used here. Nothing is loaded before it is asked for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from gradwire import _core

_NAME = "libnccl.so.2"


def library() -> str:
    """Returns the path of PyPI's NCCL (nvidia-nccl-cu13 or -cu12), else the name by which the loader finds the
    system's."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:  # no nvidia package at all
        return _NAME
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    files = [Path(folder) / "lib" / _NAME for folder in folders]
    return next((str(file) for file in files if file.exists()), _NAME)


def version() -> str:
    """Returns "2.32.3". Needs no GPU.

    Raises: gradwire.TransportError: it is not there, or not NCCL; says what the loader says.
    """
    found: str = _core.nccl_version(library())
    return found


def why_not() -> str | None:
    """Returns why NCCL cannot sum in this process; None: it can."""
    build = _core.build_info()
    if build["nccl_missing"]:
        return str(build["nccl_missing"])
    try:
        found = version()
    except _core.TransportError as error:
        return str(error).removeprefix("nccl: ")
    if not build["cuda_devices"]:
        return f"NCCL {found} is here, but no GPU is: {build['cuda_missing']}"
    return None
