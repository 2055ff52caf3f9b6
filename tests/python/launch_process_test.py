"""The launcher as a process of its own: its command line, and what signals to it, and its death, do to the job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.processes import is_alive, wait_until
from python.small_jobs import SECONDS, assert_none_left, folder_of_a_job, noted_pids, python

Launch = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return folder_of_a_job(tmp_path, monkeypatch)


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Starts `gradwire run` with arguments. stop_seconds: what it lets pass between SIGTERM and SIGKILL, if not 2."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, stop_seconds: float = 2.0) -> subprocess.Popen[str]:
        patch = f"from gradwire.launch import supervisor; supervisor._STOP_SECONDS = {stop_seconds}"
        program = f"{patch}; from gradwire import cli; cli.main()"
        command = [sys.executable, "-c", program, "run", *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for launcher in started:
        launcher.kill()
        launcher.communicate()


SLEEPER = "note(f'child{rank}', subprocess.Popen(['sleep', '600']).pid)\nprint('up')\ntime.sleep(600)"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER
EVERYONE = {"worker0", "worker1", "child0", "child1", "scheduler", "server0"}


def await_everyone(folder: Path, launcher: subprocess.Popen[str]) -> None:
    def are_up() -> bool:
        assert launcher.poll() is None, launcher.communicate()
        return set(noted_pids(folder)) >= EVERYONE

    wait_until(are_up, SECONDS, f"{EVERYONE} to come up")


@pytest.mark.parametrize(
    ("number", "program"),
    [(signal.SIGINT, SLEEPER), (signal.SIGTERM, SLEEPER), (signal.SIGINT, STUBBORN)],
    ids=["SIGINT", "SIGTERM", "SIGINT and who is stubborn"],
)
def test_signal_to_the_launcher_ends_all(
    folder: Path, launch: Launch, number: signal.Signals, program: str
) -> None:
    launcher = launch("-n", "2", "-s", "1", "--", *python(program))
    await_everyone(folder, launcher)
    launcher.send_signal(number)
    launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 128 + number
    assert_none_left(folder, EVERYONE)


def test_second_ctrl_c_does_not_wait(folder: Path, launch: Launch) -> None:
    launcher = launch("-n", "2", "-s", "1", "--", *python(STUBBORN), stop_seconds=600.0)
    await_everyone(folder, launcher)
    scheduler = noted_pids(folder)["scheduler"]
    launcher.send_signal(signal.SIGINT)
    wait_until(lambda: not is_alive(scheduler), SECONDS, "the first Ctrl-C to be heard")
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 130
    assert_none_left(folder, EVERYONE)


def test_killing_the_launcher_leaves_nothing(folder: Path, launch: Launch) -> None:
    launcher = launch("-n", "2", "-s", "1", "--", *python(STUBBORN))
    await_everyone(folder, launcher)
    launcher.kill()
    launcher.wait()
    assert_none_left(folder, EVERYONE)


def test_stopped_worker_ends_with_ctrl_c(folder: Path, launch: Launch) -> None:
    launcher = launch("-n", "2", "-s", "1", "--", *python(STUBBORN))
    await_everyone(folder, launcher)
    os.kill(noted_pids(folder)["worker1"], signal.SIGSTOP)
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 130
    assert_none_left(folder, EVERYONE)


def test_command_line_prefixes_lines_by_stream(folder: Path, launch: Launch) -> None:
    program = "print('to', 'out'); print('to err', file=sys.stderr)"
    launcher = launch("-n", "2", "-s", "0", *python(program))
    out, err = launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 0
    assert sorted(out.splitlines()) == ["[worker 0] to out", "[worker 1] to out"]
    assert sorted(err.splitlines()) == ["[worker 0] to err", "[worker 1] to err"]


def test_own_options_end_at_the_command(folder: Path, launch: Launch) -> None:
    launcher = launch(
        "-n", "1", "-s", "0", "sh", "-c", 'printf "%s " "$@"; echo', "sh", "-n", "9", "--help", "--json", "x"
    )
    out, _ = launcher.communicate(timeout=SECONDS)
    assert out == "[worker 0] -n 9 --help --json x \n"


def test_double_dash_and_failing_code(folder: Path, launch: Launch) -> None:
    launcher = launch("-n", "2", "-s", "0", "--", sys.executable, "-c", "import sys; sys.exit(23)")
    _, err = launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 23
    assert "ended with exit code 23" in err


def test_json_record_to_stdout_is_alone_there(folder: Path, launch: Launch) -> None:
    launcher = launch("-n", "1", "-s", "0", "--json", "-", "--", *python("print('noise'); sys.exit(5)"))
    out, err = launcher.communicate(timeout=SECONDS)
    record = json.loads(out)
    assert (record["exit_code"], record["failed_role"], record["failed_rank"]) == (5, "worker", 0)
    assert "[worker 0] noise" in err
