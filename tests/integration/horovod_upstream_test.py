"""horovod_upstream.py on small files of tests: a job that dies is never a job whose tests have passed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from integration.processes import HERE

PASSES = """
import atexit, os, unittest
import horovod.torch as hvd

class Tests(unittest.TestCase):
    def test_allreduce(self):
        hvd.init()
        self.assertEqual(hvd.size(), 1)
"""


def upstream(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    path = folder / "some_tests.py"
    path.write_text(text, encoding="utf-8")
    command = [sys.executable, str(HERE / "horovod_upstream.py"), str(path), "--ranks", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_tests_that_pass_are_counted(tmp_path: Path) -> None:
    ended = upstream(tmp_path, PASSES)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.split("allreduce")[1].split()[:3] == ["1", "0", "0"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param(PASSES + "\nos._exit(3)\n", "before its first test", id="first"),
        pytest.param(PASSES + "        atexit.register(os._exit, 3)\n", "behind test_allreduce", id="behind"),
    ],
)
def test_a_job_that_dies_is_an_error(tmp_path: Path, text: str, place: str) -> None:
    ended = upstream(tmp_path, text)
    assert ended.returncode != 0
    assert f"ended with exit code 3 {place}" in ended.stderr


def test_a_job_that_dies_in_a_test_counts_it_as_failed(tmp_path: Path) -> None:
    ended = upstream(tmp_path, PASSES + "        os._exit(3)\n")
    assert ended.returncode == 1
    assert ended.stdout.split("allreduce")[1].split()[:3] == ["0", "0", "1"]


def test_no_test_at_all_is_an_error(tmp_path: Path) -> None:
    ended = upstream(tmp_path, PASSES, "--pattern", "broadcast")
    assert ended.returncode != 0
    assert "no test with 'broadcast'" in ended.stderr
