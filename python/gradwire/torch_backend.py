"""Registers the backend "gradwire" of torch.distributed: `torch.distributed.init_process_group("gradwire")`.

torch calls register() at the end of `import torch`, by the entry point that pyproject.toml declares in the group
"torch.backends". An error there would end the import of torch in every program of this environment. So nothing is
imported here that torch has not imported itself, and register() never raises. What the backend is made of
(gradwire.torch.backend) is imported when a process group is created.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

NAME = "gradwire"


def register() -> None:
    """Makes the backend known to torch.distributed, unless it is already. Never raises: a failure is a warning."""
    try:
        _register()
    except Exception as error:
        with contextlib.suppress(Exception):  # the warnings filter may turn a warning into an error
            warnings.warn(
                f'gradwire: torch.distributed has no backend "{NAME}" in this process: {_in_words(error)}',
                RuntimeWarning,
                stacklevel=2,
            )


def _register() -> None:
    import torch.distributed as dist

    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, backend_options: Any) -> Any:
    """Creates a group's part for one kind of device. torch calls it on every rank of the group.

    Args:
        options: torch's DistributedBackendOptions: store, rank, size, timeout.
        backend_options: the script's `pg_options`, which may be another backend's; not used.

    Raises:
        RuntimeError: gradwire cannot be imported; says why.
        As gradwire.torch.backend.process_group.create().
    """
    try:
        from gradwire.torch.backend import process_group
    except Exception as error:
        raise RuntimeError(
            f'gradwire: the backend "{NAME}" of torch.distributed cannot be used, because gradwire.torch cannot be '
            f"imported: {_in_words(error)}; expected an installation whose compiled extension fits this Python and "
            "this machine; run `gradwire doctor`, or reinstall gradwire"
        ) from error
    return process_group.create(options)


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
