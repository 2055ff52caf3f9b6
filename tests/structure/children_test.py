"""tests/children.py: a signal ends a run of the tests, and everything that it has started."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from integration.processes import is_alive, wait_until

from tests import cpp_suite
from tests.run import ROOT

STUBBORN = "trap '' INT; sleep 600 & echo $! > {file}; wait"
"""A test that Ctrl-C does not end, and that has started something."""
MILD = "echo $$ > {file}; exec sleep 600"


def started(file: Path) -> int:
    """Waits until a test has started something, and returns its pid."""
    wait_until(lambda: file.exists() and file.read_text().strip() != "", 20, "the test has begun")
    return int(file.read_text())


def await_end(pid: int) -> None:
    wait_until(lambda: not is_alive(pid), 20, f"{pid} has ended")


@pytest.mark.parametrize(
    ("numbers", "script"),
    [
        ([signal.SIGINT], MILD),
        ([signal.SIGTERM], STUBBORN),
        ([signal.SIGINT, signal.SIGINT], STUBBORN),
    ],
    ids=["Ctrl-C", "stubborn", "Ctrl-C twice"],
)
def test_a_signal_ends_the_run_and_all_that_it_started(
    numbers: list[signal.Signals], script: str, tmp_path: Path
) -> None:
    files = [tmp_path / str(number) for number in range(3)]  # the third waits for its turn
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "programs.json").write_text(
        json.dumps(
            [
                {
                    "name": file.name,
                    "folder": "fusion",
                    "command": ["bash", "-c", script.format(file=file)],
                    "of_tests": False,
                }
                for file in files
            ]
        )
    )
    command = [sys.executable, "-m", "tests.run", "--cpp", "--jobs=2", f"--tree={tmp_path}"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        pids = [started(file) for file in files[:2]]
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.2)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (128 + numbers[-1], f"tests: ended by {numbers[-1].name}\n")
    for pid in pids:
        await_end(pid)
    assert not files[2].exists()


def test_a_test_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    program = cpp_suite.Program("late", "fusion", ("bash", "-c", STUBBORN.format(file=file)), of_tests=False)
    result = cpp_suite.run_part(cpp_suite.Part(program, ()), longest_seconds=2)["late"]
    assert result.state == "failed"
    await_end(started(file))
