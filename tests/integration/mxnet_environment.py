"""MXNet's Python for the tests, and gradwire in it.

MXNet 1.9.1 needs a NumPy that is older than the others' here, so it has an environment of its own, which
`gradwire bench --peer mxnet` uses as well; whoever is first makes it (50 MB from PyPI).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
    """Returns MXNet's Python; where there is none the test is skipped, with the reason, or fails if CI is set: nobody
    reads there what was skipped.
    """
    try:
        return mxnet_python()
    except peer_mxnet.PeerUnavailable as reason:
        said = f"MXNet 1.9.1 cannot be had here: {reason}"
    if os.environ.get("CI"):
        pytest.fail(f"{said}; CI is set, where all tests of MXNet are to run")
    pytest.skip(said)


def variables(folder: Path) -> dict[str, str]:
    """Ends the test as require_mxnet() where there is no MXNet; else returns the variables that mxnet_exec.py needs.

    folder: gets links to this gradwire, so that MXNet's Python finds it and nothing else that is installed beside it.
    """
    python, path = require_mxnet(), folder / "path"
    peer_mxnet.link_gradwire(path)
    return {
        "TEST_MXNET_PYTHON": str(python),
        "TEST_MXNET_PATH": str(path),
        "GRADWIRE_RENDEZVOUS_TIMEOUT": "240s",  # importing MXNet takes a loaded machine long
        "MXNET_STORAGE_FALLBACK_LOG_VERBOSE": "0",
    }


@contextlib.contextmanager
def environment(folder: Path) -> Iterator[None]:
    """Has these variables in the environment meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables(folder).items():
            patch.setenv(name, value)
        yield
