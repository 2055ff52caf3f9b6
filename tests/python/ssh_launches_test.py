"""How many connections a host is asked for at once, and that a failed one is tried again: over a program in ssh's place
that runs everything here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from gradwire.launch.remote import ssh
from python.small_jobs import SECONDS, folder_of_a_job, python

# Counts who connects at the same time; fails where the folder has "fails": of worker 0 once, or always.
FAKE_SSH = """\
#!{python}
import os, pathlib, sys, time
if "-G" in sys.argv:
    print("hostname 127.0.0.1")
    sys.exit()
folder = pathlib.Path({folder!r})
line = sys.argv[-1]
mine = folder / f"{{os.getpid()}}.connects"
mine.touch()
with (folder / "counts").open("a") as file:
    file.write(f"{{len(list(folder.glob('*.connects')))}}\\n")
time.sleep(0.3)
mine.unlink()
if (folder / "fails always").exists() or (folder / "fails once").exists():
    (folder / "fails once").unlink(missing_ok=True)
    print("kex_exchange_identification: Connection closed", file=sys.stderr)
    sys.exit(255)
os.execvp("sh", ["sh", "-c", "printf noise; " + line])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "ssh"
    program.write_text(FAKE_SSH.format(python=sys.executable, folder=str(tmp_path)))
    program.chmod(0o755)
    return folder_of_a_job(tmp_path, monkeypatch)


def run(folder: Path, workers: int) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "gradwire.cli", "run", "-n", str(workers), "-s", "0", "--launcher", "ssh"]
    words += ["--ssh", str(folder / "ssh"), "-H", f"somewhere:{workers}", "--env", f"FAKE_FOLDER={folder}"]
    return subprocess.run(
        [*words, "--env", "FAKE_SECONDS=0", *python("print(rank, 'is here')")],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_a_host_is_asked_for_few_connections_at_once(folder: Path) -> None:
    done = run(folder, 16)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(
        line for rank in range(16) for line in (f"[worker {rank}] noise", f"[worker {rank}] {rank} is here")
    )
    counts = [int(word) for word in (folder / "counts").read_text().split()]
    assert len(counts) == 16
    assert 1 < max(counts) <= ssh.LAUNCHES_AT_ONCE


def test_a_failed_connection_is_tried_once_more(folder: Path) -> None:
    (folder / "fails once").touch()
    done = run(folder, 2)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"gradwire: worker \d \(pid \d+\): ssh has not reached its host; trying once more\n", done.stderr
    )
    assert done.stdout.count("is here") == 2


def test_a_host_that_stays_away_ends_the_job(folder: Path) -> None:
    (folder / "fails always").touch()
    done = run(folder, 1)
    assert done.returncode == 255
    assert done.stderr.count("Connection closed") == 2
    assert done.stderr.count("trying once more") == 1
