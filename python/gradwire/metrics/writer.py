"""What a writer of metrics is, and errors that all writers have in common."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from gradwire.metrics.table import Value


class Writer(Protocol):
    """Writes metrics to one place. What can be refused is refused where it is made, before a job is joined.

    Threading: one call at a time, from any thread.
    """

    name: str  # for errors and warnings, as "textfile:/tmp/metrics"
    is_ours: bool  # gradwire opened the place; else the script did, and may have closed it

    def begin(self, rank: int, store: str) -> None:
        """Opens the place for a worker's rank and the name of its store."""

    def write(self, values: Iterable[Value], step: int) -> None:
        """Writes all values that are known, as they are after so many steps of the optimizer."""

    def close(self) -> None:
        """Ends writing. begin() may have been left out."""


def needed_module(module: str, package: str, target: str) -> Any:
    """Imports a module of a package that gradwire does not require.

    Args:
        module: its full name.
        package: what to give pip.
        target: what needs it, for the error.

    Raises: ImportError: it cannot be imported; says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"metrics: {target}: the module {module} is needed and cannot be imported ({error}); run "
            f"`pip install {package}`, or take this target out",
            name=module,
        ) from None


def writable_folder(folder: str, target: str) -> Path:
    """Makes a folder, unless it is there, and writes a file to it that is removed at once.

    Raises: OSError: it cannot be made or written; says why.
    """
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path, prefix=".gradwire-") as probe:
            probe.write(b"0")
    except OSError as error:
        raise OSError(
            error.errno,
            f"metrics: {target}: the folder {str(path)!r} cannot be written ({error.strerror}); give one that this "
            "user may write, on a disk with space",
        ) from None
    return path
