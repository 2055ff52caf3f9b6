"""Daemons as ordinary processes of a test, whose output goes to a folder of theirs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 30.0
STOP_SECONDS = 5.0


def find(name: str) -> str | None:
    """Returns the path of a program, which may be root's."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@contextmanager
def daemon(folder: Path, environment: dict[str, str], name: str, *arguments: str) -> Iterator[None]:
    """Runs one, and ends it."""
    program = find(name)
    assert program is not None
    with (folder / f"{name}.out").open("wb") as output:
        process = subprocess.Popen(
            [program, *arguments],
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(is_there: Callable[[], bool], folder: Path, what: str) -> None:
    """Waits until daemons whose output is in a folder do what they are there for."""
    until = time.monotonic() + START_SECONDS
    while not is_there():
        if time.monotonic() > until:
            said = "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in folder.glob("*.out"))
            raise TimeoutError(f"{what} is not up after {START_SECONDS} s\n{said}")
        time.sleep(0.1)
