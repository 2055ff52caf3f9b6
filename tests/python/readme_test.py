"""The example of README.md runs as it is written, started by each command that it names."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from integration.torch_jobs import TORCHRUN
from python.readme_example import ROOT, digests, script_of_readme

# The programs under test, wherever they are installed.
PROGRAMS = {
    "gradwire": [sys.executable, "-m", "gradwire.cli"],
    "python": [sys.executable],
    "torchrun": TORCHRUN,
}
COMMANDS, SCRIPT = script_of_readme()


def test_it_names_both_launchers() -> None:
    assert [command[0] for command in COMMANDS] == ["gradwire", "torchrun"]


@pytest.mark.parametrize("named", COMMANDS, ids=[command[0] for command in COMMANDS])
def test_the_first_example_trains_two_workers_to_the_same_weights(named: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [part for word in named for part in PROGRAMS.get(word, [word])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ended = digests(done.stdout)
    assert sorted(ended) == ["0", "1"], done.stdout
    assert len(set(ended.values())) == 1, done.stdout


DEFAULT_STORE = "import gradwire.torch; print('store', gradwire.torch.default_store().type)"


@pytest.mark.parametrize("store", ["dist_sync", "allreduce"])
def test_a_script_that_names_no_store_gets_that_of_the_command_in_the_table(store: str) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(rf"^\| `{store}` \|.*\| `(gradwire run [^`]*)`", text, re.MULTILINE)
    words = [*PROGRAMS["gradwire"], *shlex.split(command)[1:], sys.executable, "-c", DEFAULT_STORE]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"store (\w+)", done.stdout) == [store] * 4, done.stdout
