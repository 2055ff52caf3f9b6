"""Processes that end with their owner, and those that outlive it to clean up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gradwire.launch.process_session import dying_with_owner, fork_survivor


def _comes(path: Path) -> bool:
    deadline = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return path.exists()


def test_a_survivor_acts_when_its_owner_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "acted"
    owner = f"""
import os, pathlib, signal
from gradwire.launch.process_session import fork_survivor
fork_survivor(lambda reading: os.read(reading, 1) or pathlib.Path({str(file)!r}).touch())
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", owner], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert _comes(file)


def test_a_survivor_reads_what_its_owner_writes(tmp_path: Path) -> None:
    file = tmp_path / "read"
    part = tmp_path / "part"

    def act(reading: int) -> None:
        part.write_bytes(os.read(reading, 1))
        part.rename(file)

    word = fork_survivor(act)
    os.write(word, b"0")
    os.close(word)
    assert _comes(file)
    assert file.read_bytes() == b"0"


def test_a_child_is_killed_with_its_owner() -> None:
    owner = """
import os, pathlib, signal, subprocess, sys
from gradwire.launch.process_session import dying_with_owner
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], preexec_fn=dying_with_owner())
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    began = time.monotonic()
    # Until all have closed its stdout.
    subprocess.run([sys.executable, "-c", owner], stdout=subprocess.PIPE, check=False)
    assert time.monotonic() - began < 30


def test_a_child_whose_owner_has_ended_before_does_not_begin() -> None:
    prepare = dying_with_owner()
    if (pid := os.fork()) == 0:
        prepare()  # in a child it does nothing: its owner lives
        if os.fork() == 0:
            prepare()  # its parent is another than the owner: it ends with code 1
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
