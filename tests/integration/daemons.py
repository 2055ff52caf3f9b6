"""Daemons as ordinary processes of a test, whose output goes to a folder of theirs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 30.0
STOP_SECONDS = 5.0


def find(name: str) -> str | None:
    """Returns the path of a program, which may be root's."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def why_not(programs: Sequence[str], packages: str, root_is_for: str) -> str | None:
    """Returns why daemons cannot be started here; None: they can.

    Args:
        programs: which there must be. packages: that hold them, in Debian.
        root_is_for: the one of them that runs as root alone.
    """
    missing = [name for name in programs if find(name) is None]
    if missing:
        return f"no {', '.join(missing)}: install {packages}"
    return None if os.geteuid() == 0 else f"{root_is_for} needs root"


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


def ask(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a client of theirs to its end."""
    return subprocess.run(
        words, env={**os.environ, **environment}, capture_output=True, text=True, timeout=START_SECONDS
    )


def wait_for(is_there: Callable[[], bool], folder: Path, what: str) -> None:
    """Waits until daemons whose output is in a folder do what they are there for."""
    until = time.monotonic() + START_SECONDS
    while not is_there():
        if time.monotonic() > until:
            said = "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in folder.glob("*.out"))
            raise TimeoutError(f"{what} is not up after {START_SECONDS} s\n{said}")
        time.sleep(0.1)
