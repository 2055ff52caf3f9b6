"""MXNet's Python for the tests, and gradwire in it.

MXNet 1.9.1 needs a NumPy that is older than the others' here, so it has an environment of its own, which
`gradwire bench --peer mxnet` uses as well; whoever is first makes it (50 MB from PyPI).
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import gradwire
import gradwire._core
import pytest
from gradwire.bench import peer_mxnet


def mxnet_python() -> Path:
    """Returns MXNet's Python; made here if need be, by one test at a time.

    Raises: peer_mxnet.PeerUnavailable: it cannot be made, or the extension is another Python's.
    """
    folder = peer_mxnet.default_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = peer_mxnet.find_python(None, lambda text: None)
    version = "import sys; print('{}.{}'.format(*sys.version_info))"
    its = subprocess.run([python, "-c", version], capture_output=True, text=True, check=True).stdout.strip()
    ours = "{}.{}".format(*sys.version_info)
    if its != ours:
        raise peer_mxnet.PeerUnavailable(f"MXNet's Python is {its}, and gradwire's extension is for {ours}")
    return python


def require_mxnet() -> Path:
    """Returns MXNet's Python; skips the test, with the reason, where there is none."""
    try:
        return mxnet_python()
    except peer_mxnet.PeerUnavailable as reason:
        pytest.skip(f"MXNet 1.9.1 cannot be had here: {reason}")


def environment(folder: Path) -> dict[str, str]:
    """The variables with which MXNet's Python finds this gradwire, and nothing else that is installed beside it.

    folder: of this process's own; gets links.
    """
    package = folder / "gradwire"
    package.mkdir(parents=True)
    for place in {Path(gradwire.__file__).parent, Path(gradwire._core.__file__).parent}:
        for entry in place.iterdir():
            if not entry.name.startswith("__pycache__"):
                (package / entry.name).symlink_to(entry)
    return {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MXNET_STORAGE_FALLBACK_LOG_VERBOSE": "0",
    }
