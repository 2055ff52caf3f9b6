"""What all Python tests share: a process state that does not depend on who started them, and a store of one's own.

A shell gives its background jobs an ignored SIGINT and SIGQUIT (POSIX.1-2017, 2.11), and CI runners start theirs that
way; nohup ignores SIGHUP. Every process under test would inherit it: Ctrl-C would rightly do nothing, and tests that
send the others would wait for what never comes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradwire
import pytest
from integration.processes import FOLDER_OF_MPIRUN

signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)

FORK_SERVER = Path(__file__).parent / "fork_server"


def pytest_configure(config: pytest.Config) -> None:
    """Gives mpiruns a folder. Where tests run side by side, starts the fork server for their programs, too
    (fork_server/server.py says why).
    """
    _separate_mpiruns(config)
    if not getattr(config.option, "numprocesses", None) or "TEST_FORK_SERVER" in os.environ:
        return  # a few tests, one of the processes that share many, or a server that is there
    folder = tempfile.TemporaryDirectory(prefix="fork-server-")
    path = f"{folder.name}/socket"
    server = subprocess.Popen(
        [sys.executable, FORK_SERVER / "server.py", path],
        stdin=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
    )
    os.environ["TEST_FORK_SERVER"] = path
    given = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(FORK_SERVER), *([given] if given else [])])

    def stop() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
        folder.cleanup()

    config.add_cleanup(stop)


def _separate_mpiruns(config: pytest.Config) -> None:
    """Gives mpiruns of this process a folder. Else all of a user share /tmp/ompi.HOST.UID. The last one that ends
    removes it, and one that starts at that moment fails (Open MPI 4.1.4: "A call to mkdir was unable to create the
    desired directory").
    """
    folder = tempfile.TemporaryDirectory(prefix="mpi-", ignore_cleanup_errors=True)
    os.environ[FOLDER_OF_MPIRUN] = folder.name
    config.add_cleanup(folder.cleanup)


@pytest.fixture
def local_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A store of this process alone, uncompressed, whatever job the environment describes."""
    for variable in ("GRADWIRE_ROLE", "DMLC_ROLE", "GRADWIRE_COMPRESSION"):
        monkeypatch.delenv(variable, raising=False)
    opened = gradwire.kv.create("local")
    yield opened
    opened.close()
