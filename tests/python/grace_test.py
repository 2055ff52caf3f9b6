"""Signals with which schedulers announce the end of an allocation: workers save, servers serve them meanwhile, and who
is killed is named."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.processes import is_alive, wait_until
from python.small_jobs import SECONDS, assert_none_left, folder_of_a_job, noted_pids, python

Launch = Callable[..., subprocess.Popen[str]]
EVERYONE = {"worker0", "worker1", "child0", "child1", "scheduler", "server0"}
# Saves until it is let go, by a process of its own, which must not get the signal.
SAVER = """
child = subprocess.Popen(['sleep', '600'])
def save(number, _):
    note(f'saving{rank}')
    while not (folder / 'go').exists():
        time.sleep(0.01)
    assert child.poll() is None, 'what it saves with has had the signal'
    print(f'saved {rank} after {number}')
    if number == signal.SIGTERM:
        sys.exit(0)
    note(f'went on{rank}')
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
    signal.signal(number, save)
note(f'child{rank}', child.pid)
while not (folder / 'end').exists():
    time.sleep(0.01)
"""
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nnote(f'child{rank}')\ntime.sleep(600)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return folder_of_a_job(tmp_path, monkeypatch)


@pytest.fixture
def launch(folder: Path) -> Iterator[Launch]:
    """Starts a job and waits until all are up. Servers, and with Ctrl-C workers, get 10 ms between SIGTERM and SIGKILL,
    so that a worker which saves for longer does so in the grace that it has."""
    started: list[subprocess.Popen[str]] = []

    def start(
        program: str, *options: str, stop_seconds: float = 0.01, output: int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        patch = f"from gradwire.launch import supervisor; supervisor._STOP_SECONDS = {stop_seconds}"
        code = f"{patch}; from gradwire import cli; cli.main()"
        words = [sys.executable, "-c", code, "run", "-n", "2", "-s", "1", *options, "--", *python(program)]
        launcher = subprocess.Popen(words, stdout=output, stderr=output, text=True)
        started.append(launcher)
        await_notes(folder, launcher, EVERYONE)
        return launcher

    yield start
    for launcher in started:
        launcher.kill()
        launcher.communicate()


def await_notes(folder: Path, launcher: subprocess.Popen[str], names: set[str]) -> None:
    def are_there() -> bool:
        assert launcher.poll() is None, launcher.communicate()
        return set(noted_pids(folder)) >= names

    wait_until(are_there, SECONDS, f"{names}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_workers_save_and_servers_serve_them(number: signal.Signals, folder: Path, launch: Launch) -> None:
    launcher = launch(SAVER)
    launcher.send_signal(number)
    await_notes(folder, launcher, {"saving0", "saving1"})
    launcher.send_signal(number)  # of a scheduler that says it again: nobody is in a hurry for that
    assert all(is_alive(noted_pids(folder)[name]) for name in ("scheduler", "server0"))
    (folder / "go").touch()
    out, err = launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 128 + number, err
    assert sorted(line for line in out.splitlines() if "saved" in line) == [
        f"[worker {rank}] saved {rank} after {int(signal.SIGTERM)}" for rank in range(2)
    ], err
    assert "asked all workers to end by SIGTERM; they have 30 s (--grace) to save" in err
    assert "worker 0 (pid" not in err
    assert_none_left(folder, EVERYONE)


@pytest.mark.parametrize(
    ("number", "opened"),
    [
        pytest.param(signal.SIGTERM, os.pipe, id="which also ended `| tee`"),
        pytest.param(signal.SIGHUP, pty.openpty, id="of a terminal that is closed"),
    ],
)
def test_workers_save_though_nobody_sees_the_output_any_more(
    number: signal.Signals, opened: Callable[[], tuple[int, int]], folder: Path, launch: Launch
) -> None:
    """The launcher could not say what it did, and killed the workers."""
    record = folder / "record.json"
    reader, writer = opened()
    launcher = launch(SAVER, "--json", str(record), output=writer)
    for end in (reader, writer):
        os.close(end)
    launcher.send_signal(number)
    await_notes(folder, launcher, {"saving0", "saving1"})
    (folder / "go").touch()
    assert launcher.wait(SECONDS) == 128 + number
    assert json.loads(record.read_text())["exit_code"] == 128 + number
    assert_none_left(folder, EVERYONE)


def test_who_is_killed_after_the_grace_is_named(folder: Path, launch: Launch) -> None:
    launcher = launch(STUBBORN, "--grace", "10ms")
    launcher.send_signal(signal.SIGTERM)
    _, err = launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 128 + signal.SIGTERM
    for rank in range(2):
        pid = noted_pids(folder)[f"worker{rank}"]
        said = f"worker {rank} (pid {pid}) has not ended within 0.01 s (--grace) of SIGTERM: killing it"
        assert said in err
    assert_none_left(folder, EVERYONE)


def test_ctrl_c_ends_the_saving(folder: Path, launch: Launch) -> None:
    launcher = launch(SAVER, "--grace", "1h")
    launcher.send_signal(signal.SIGTERM)
    await_notes(folder, launcher, {"saving0", "saving1"})
    launcher.send_signal(signal.SIGINT)
    _, err = launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 128 + signal.SIGTERM
    assert "has not ended within 0.01 s of SIGTERM: killing it" in err
    assert_none_left(folder, EVERYONE)


def test_second_ctrl_c_kills_at_once(folder: Path, launch: Launch) -> None:
    launcher = launch(SAVER, stop_seconds=600.0)
    launcher.send_signal(signal.SIGINT)
    await_notes(folder, launcher, {"saving0", "saving1"})
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 128 + signal.SIGINT
    assert_none_left(folder, EVERYONE)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT])
def test_signals_are_handed_to_the_program_alone_and_the_job_goes_on(
    number: signal.Signals, folder: Path, launch: Launch
) -> None:
    (folder / "go").touch()
    launcher = launch(SAVER)
    launcher.send_signal(number)
    await_notes(folder, launcher, {"went on0", "went on1"})
    for name in ("end", "done"):
        (folder / name).touch()
    out, err = launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 0, err
    for rank in range(2):
        assert f"[worker {rank}] saved {rank} after {int(number)}" in out


def test_an_error_in_saving_is_named(folder: Path, launch: Launch) -> None:
    fails = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nnote(f'child{rank}')\ntime.sleep(600)"
    launcher = launch(fails)
    launcher.send_signal(signal.SIGTERM)
    _, err = launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 128 + signal.SIGTERM
    assert err.count("ended with exit code 7 after SIGTERM") == 2
