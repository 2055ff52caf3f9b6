"""NCCL: its library and version, this process's GPU, and why NCCL cannot be used here. Importing it loads nothing."""

from __future__ import annotations

import functools
import importlib.util
import os
import secrets
from pathlib import Path

from gradwire import _core
from gradwire.settings.definitions import Settings

_NAME = "libnccl.so.2"
_HOST_ID = "NCCL_HOSTID"


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


def device(values: Settings) -> int | None:
    """Returns the number of the GPU on which NCCL sums for this process; None: its rank modulo the number of GPUs."""
    if values.device is not None or values.local_rank is None:
        return values.device
    return values.local_rank % max(int(_core.build_info()["cuda_devices"]), 1)


def share_gpus() -> None:
    """Makes NCCL accept that other ranks use this process's GPU. Call it before NCCL makes its first communicator.

    NCCL refuses two ranks with the same host id and the same GPU. This gives the process a host id that no other
    process has, so NCCL takes the ranks for ranks of different hosts and connects them by its network transport. From
    2.30 on, NCCL_MULTI_RANK_GPU_ENABLE=1 allows it too; the host id works in every version.
    """
    os.environ[_HOST_ID] = f"{_common_host_id()}-{secrets.token_hex(8)}"


@functools.cache
def _common_host_id() -> str:
    """Returns the host id that the user gave to all processes of this host, if any."""
    return os.environ.get(_HOST_ID, "gradwire")
