"""Jobs of small programs: a worker is some lines of Python, servers and scheduler are stood in for by one more. All
leave their pids in a folder, so that a test can tell whether any is left."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from integration.processes import is_alive, wait_until

ROOT = Path(__file__).resolve().parents[2]
SECONDS = (
    300.0  # for processes to start or end on a busy machine; what is left to itself runs for ten minutes
)
LONGER_AND_LONGER = (0.5, 4.0, 32.0)
"""Seconds, tried one after the other where they must suffice for processes to start, and pass whatever happens."""

# Announces an endpoint, leaves pid and flags in a folder, ends after FAKE_SECONDS or once "done" is there: with what
# FAKE_END_name says, "CODE" or "CODE after NAME", a signal's number being negative, once NAME has ended.
FAKE_SERVER = """\
#!{python}
import os, pathlib, sys, time
words = [word for word in sys.argv[1:] if word != "--servers-optional"]
flags = dict(zip(words[::2], words[1::2]))
name = flags["--role"] + flags.get("--rank", "")
folder = pathlib.Path(os.environ["FAKE_FOLDER"])
(folder / (name + ".flags")).write_text(repr(flags))
(folder / (name + ".tmp")).write_text(str(os.getpid()))
(folder / (name + ".tmp")).rename(folder / (name + ".pid"))
if "--announce" in flags and "FAKE_MUTE" not in os.environ:
    os.write(int(flags["--announce"]), b"tcp://127.0.0.1:4242\\n")
    os.close(int(flags["--announce"]))
if "--servers-optional" not in sys.argv:
    print(name, "is up", flush=True)
end = time.monotonic() + float(os.environ.get("FAKE_SECONDS", "600"))
while time.monotonic() < end and not (folder / "done").exists():
    time.sleep(0.01)
code, _, other = os.environ.get("FAKE_END_" + name, "0").partition(" after ")
while other and not (folder / (other + ".pid")).exists():
    time.sleep(0.01)
while other and os.path.exists("/proc/" + (folder / (other + ".pid")).read_text()):
    time.sleep(0.01)
if int(code) < 0:
    os.kill(os.getpid(), -int(code))
sys.exit(int(code))
"""

WORKER = """\
import os, pathlib, signal, subprocess, sys, time
rank = int(os.environ['GRADWIRE_RANK'])
folder = pathlib.Path(os.environ['FAKE_FOLDER'])
def note(name, pid=None):
    (folder / (name + '.tmp')).write_text(str(pid or os.getpid()))
    (folder / (name + '.tmp')).rename(folder / (name + '.pid'))
def await_start(*names):
    while not all((folder / (name + '.pid')).exists() for name in names): time.sleep(0.01)
def await_end(name):
    await_start(name)
    process = pathlib.Path('/proc') / (folder / (name + '.pid')).read_text()
    while process.exists(): time.sleep(0.01)
note(f'worker{rank}')
"""


def folder_of_a_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a folder one where the fake server program lives, and where the processes of a job leave their pids."""
    program = folder / "fake-server"
    program.write_text(FAKE_SERVER.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("GRADWIRE_SERVER_PROGRAM", str(program))
    monkeypatch.setenv("FAKE_FOLDER", str(folder))
    monkeypatch.setenv("GRADWIRE_LIVENESS_TIMEOUT", "1ms")  # the grace after a failure is then 3 s
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    return folder


def python(program: str) -> list[str]:
    """The command of a worker. rank is its rank, folder the job's; note(name) leaves its pid there, await_start(names)
    waits for others to have done so, await_end(name) for the launcher to have seen the end of one."""
    return [sys.executable, "-c", WORKER + program]


def noted_pids(folder: Path) -> dict[str, int]:
    return {path.stem: int(path.read_text()) for path in folder.glob("*.pid")}


def assert_none_left(folder: Path, names: set[str]) -> None:
    pids = noted_pids(folder)
    assert set(pids) >= names, "a process of the job never came up, so the test would prove nothing"
    wait_until(lambda: not any(map(is_alive, pids.values())), SECONDS, f"{pids} to end")
