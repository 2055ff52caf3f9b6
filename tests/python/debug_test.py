"""`gradwire run --debug`: a debugger in one worker at a real terminal, while the others wait for it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from integration.processes import clean_environment
from python.small_jobs import SECONDS, folder_of_a_job, python

RUN = [sys.executable, "-m", "gradwire.cli", "run", "-n", "2"]
# Of the worker that waits: its own clock, which goes on while it does.
TICKS = """
import os, threading, time, gradwire, numpy as np
rank = int(os.environ["GRADWIRE_RANK"])
def tick():
    while True:
        time.sleep(0.5)
        print("tick", flush=True)
if rank == 1:
    threading.Thread(target=tick, daemon=True).start()
else:
    breakpoint()
kv = gradwire.kv.create("dist_sync")
kv.init(0, np.zeros(3, np.float32))
if rank == 0:
    breakpoint()
kv.push(0, np.full(3, rank + 1, np.float32))
out = np.zeros(3, np.float32)
kv.pull(0, out)
print("sum", out[0])
"""


class Terminal:
    """One that `gradwire run` was started at: its controlling terminal, as a person's is."""

    def __init__(self, ours: int, run: subprocess.Popen[bytes]) -> None:
        self._ours = ours
        self.run = run
        self.said = ""
        self._seen = 0

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def await_text(self, text: str, times: int = 1) -> None:
        """Waits until text has come so often since what was awaited last."""
        while self.said.count(text, self._seen) < times:
            assert self._read(), f"the job has ended without {text!r}:\n{self.said}"
        for _ in range(times):
            self._seen = self.said.index(text, self._seen) + len(text)

    def end(self) -> int:
        """Reads on until all has ended. Returns the exit code."""
        while self._read():
            pass
        return self.run.wait(SECONDS)

    def _read(self) -> bool:
        """Takes what comes next. Returns whether anything can."""
        assert select.select([self._ours], [], [], SECONDS)[0], f"nothing more comes:\n{self.said}"
        try:
            data = os.read(self._ours, 4096)
        except OSError:  # nobody has the terminal open any more
            return False
        self.said += data.decode(errors="replace")
        return bool(data)


@contextmanager
def terminal(words: list[str], environment: dict[str, str]) -> Iterator[Terminal]:
    ours, its = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with subprocess.Popen(
        words,
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment | {"NO_COLOR": "1"},
        start_new_session=True,
        preexec_fn=take_terminal,
    ) as run:
        os.close(its)
        try:
            yield Terminal(ours, run)
        finally:
            if run.poll() is None:
                run.kill()  # and its guard ends the workers
            os.close(ours)


def test_the_others_wait_for_the_one_in_a_debugger(tmp_path: Path) -> None:
    """Longer than they would wait for a slow rank, or for one that has not come yet."""
    program = tmp_path / "train.py"
    program.write_text(TICKS)
    short = {
        "GRADWIRE_RENDEZVOUS_TIMEOUT": "1s",
        "GRADWIRE_SLOW_WARNING": "500ms",
        "GRADWIRE_SLOW_ABORT": "1s",
    }
    words = [*RUN, "-s", "1", "--debug", "0", sys.executable, str(program)]
    with terminal(words, clean_environment(tmp_path, short)) as job:
        job.await_text("[worker 0] (Pdb) ")
        job.await_text("[worker 1] tick", times=5)
        job.type("c\n")
        job.await_text("(Pdb) ")
        job.await_text("[worker 1] tick", times=5)
        job.type("p 6 * 7\n")
        job.await_text("42")
        job.type("c\n")
        assert job.end() == 0, job.said
    assert job.said.count("sum 3.0") == 2, job.said


def test_without_it_they_do_not(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TICKS)
    words = [*RUN, "-s", "1", "--stdin", "0", sys.executable, str(program)]
    with terminal(words, clean_environment(tmp_path, {"GRADWIRE_RENDEZVOUS_TIMEOUT": "1s"})) as job:
        assert job.end() != 0, job.said


def test_ctrl_c_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of_a_job(tmp_path, monkeypatch)
    words = [*RUN, "-s", "0", "--debug", "0", *python("if rank == 0: breakpoint()\ntime.sleep(600)")]
    with terminal(words, dict(os.environ)) as job:
        job.await_text("[worker 0] (Pdb) ")
        job.type("\x03")
        assert job.end() == 128 + signal.SIGINT, job.said


def test_two_ways_to_give_stdin_are_one_too_many() -> None:
    done = subprocess.run(
        [*RUN, "--debug", "0", "--stdin", "1", "true"], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 2
    assert "--debug 0 cannot be combined with --stdin 1" in done.stderr
