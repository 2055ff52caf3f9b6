"""What workers read: nothing, or for one of them the launcher's stdin; and prompts, which have no line end."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gradwire.launch.child import Line, LineSplitter
from gradwire.launch.console import Prefixer
from gradwire.launch.job import make_job
from gradwire.launch.stdin_program import reads_program_from_stdin
from python.small_jobs import SECONDS, folder_of_a_job, python

GRADWIRE = [sys.executable, "-m", "gradwire.cli"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return folder_of_a_job(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "command",
    [
        *("python3 -", "python", "python3.11 -u -", "/usr/bin/python3 -u", "python - --lr 0.1"),
        *("python -s -X dev -", "pypy3 -", "bash", "sh -s -- a", "bash -e -s", "cat /dev/stdin"),
    ],
)
def test_a_program_from_stdin_is_an_error(command: str, folder: Path) -> None:
    assert reads_program_from_stdin(command.split())
    with pytest.raises(
        ValueError, match=r"reads its program from stdin, which workers have not: write the"
    ) as two:
        make_job(command.split(), 2, 0)
    assert "--stdin" not in str(two.value), "the other workers would have no program"
    with pytest.raises(ValueError, match=r"or give --stdin 0$"):
        make_job(command.split(), 1, 0)


@pytest.mark.parametrize(
    "command",
    [
        *("python3 train.py -", "python -m mod -", "python -uc x", "python -cx -", "python -V", "bash -lc x"),
        *("python -X dev train.py", "sh train.sh", "train.py -", "bash --norc train.sh", "env -"),
    ],
)
def test_other_commands_have_their_program(command: str) -> None:
    assert not reads_program_from_stdin(command.split())


def test_one_worker_reads_stdin_and_the_others_nothing(folder: Path) -> None:
    program = "print(rank, repr(sys.stdin.read()))"
    words = [
        *GRADWIRE,
        "run",
        "-n",
        "2",
        "-s",
        "0",
        "--stdin",
        "1",
        "--env",
        "FAKE_SECONDS=0",
        *python(program),
    ]
    done = subprocess.run(words, input="1 2\n3", capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[worker 0] 0 ''", "[worker 1] 1 '1 2\\n3'"]


def test_a_program_from_stdin_for_the_only_worker(folder: Path) -> None:
    words = [
        *GRADWIRE,
        "run",
        "-n",
        "1",
        "-s",
        "0",
        "--stdin",
        "0",
        "--env",
        "FAKE_SECONDS=0",
        sys.executable,
        "-",
    ]
    done = subprocess.run(
        words, input="print('trained'); raise SystemExit(3)", capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stdout) == (3, "[worker 0] trained\n"), done.stderr


def test_a_debugger_at_a_terminal(folder: Path) -> None:
    """Its prompt is shown while it waits, and what is typed reaches it."""
    ours, its = pty.openpty()
    words = [*GRADWIRE, "run", "-n", "2", "-s", "0", "--stdin", "0", "--env", "FAKE_SECONDS=0"]
    words += python("x = 41\nif rank == 0: breakpoint()\nprint(rank, 'ends')")
    with subprocess.Popen(words, stdin=its, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        said = b""
        while b"(Pdb) " not in said:
            data = os.read(run.stdout.fileno(), 4096)
            assert data, said
            said += data
        os.write(ours, b"p x + 1\nc\n")
        rest, _ = run.communicate(timeout=SECONDS)
    os.close(ours)
    os.close(its)
    assert run.returncode == 0
    assert b"[worker 0] (Pdb) " in said
    assert b"42\n" in rest
    assert b"0 ends\n" in rest


def test_stdin_that_nobody_can_have_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="--stdin or --debug 2: expected the rank of a worker, 0 to 1"):
        make_job(["true"], 2, 0, stdin_rank=2)
    words = [*GRADWIRE, "run", "-n", "1", "--launcher", "ssh", "-H", "n", "--stdin", "0", "true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 2
    assert "--stdin 0 or --debug 0 needs --launcher local" in done.stderr


def test_the_beginning_of_a_line_is_known_and_a_bar_is_none() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"one\nname? ", time.monotonic()) == ["one"]
    assert splitter.unfinished == "name? "
    assert splitter.feed(b"x\n", time.monotonic()) == ["name? x"]
    assert splitter.unfinished == ""
    for piece in (b"\r 0%|", b"\r10%|"):
        splitter.feed(piece, time.monotonic())
        assert splitter.unfinished == ""
    splitter.feed(b"\nagain? ", time.monotonic())
    assert splitter.unfinished == "again? "


def test_a_line_is_shown_on_from_its_beginning_or_whole_again() -> None:
    out, err = io.StringIO(), io.StringIO()
    show = Prefixer(out, err)
    show.begin(Line("worker", 0, "stdout", "name? "))
    show(Line("worker", 0, "stdout", "name? x"))
    show.begin(Line("worker", 0, "stdout", "more"))
    show.begin(Line("worker", 0, "stdout", "more? "))
    show(Line("worker", 1, "stdout", "between"))
    show(Line("worker", 0, "stdout", "more? y"))
    show.begin(Line("worker", 0, "stdout", "and? "))
    show(Line("worker", 0, "stderr", "an error"))
    assert out.getvalue() == (
        "[worker 0] name? x\n[worker 0] more? \n[worker 1] between\n[worker 0] more? y\n[worker 0] and? \n"
    )
    assert err.getvalue() == "[worker 0] an error\n"
