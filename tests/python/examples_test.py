"""Every example in python/examples runs as its first lines say, by each of their commands, on two ranks, and learns."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from integration import mxnet_environment
from integration.processes import HERE
from integration.torch_jobs import TORCHRUN

START = re.compile(r"^(?:Start|Or): (.*)$", re.MULTILINE)
FOLDER = Path(__file__).resolve().parents[2] / "python" / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if START.search(path.read_text(encoding="utf-8")))
COMMANDS = [
    (path, command) for path in EXAMPLES for command in START.findall(path.read_text(encoding="utf-8"))
]
# The programs under test, wherever they are installed.
PROGRAMS = {
    "gradwire": [sys.executable, "-m", "gradwire.cli"],
    "python": [sys.executable],
    "torchrun": TORCHRUN,
}


def test_there_are_examples_and_the_readme_names_each() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(EXAMPLES) >= 5
    assert set(re.findall(r"^\| `(\w+\.py)`", readme, re.MULTILINE)) == {path.name for path in EXAMPLES}


def test_those_that_train_with_torch_start_by_both_launchers() -> None:
    """DDP's and FSDP's had not started by `gradwire run`, though the guide said so."""
    started = {(path.stem, shlex.split(command)[0]) for path, command in COMMANDS}
    for path in EXAMPLES:
        if "import torch\n" in path.read_text(encoding="utf-8"):
            assert {(path.stem, "gradwire"), (path.stem, "torchrun")} <= started


@pytest.mark.parametrize(
    ("path", "told"), COMMANDS, ids=[f"{path.stem}-{shlex.split(told)[0]}" for path, told in COMMANDS]
)
def test_an_example_runs_and_learns(path: Path, told: str, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    programs, variables = PROGRAMS, {"OMP_NUM_THREADS": "1"}
    if "import mxnet" in text:
        programs = {**programs, "python": [sys.executable, str(HERE / "mxnet_exec.py")]}
        variables |= mxnet_environment.variables(tmp_path)
    assert len(text.splitlines()) <= 60
    command = [part for word in shlex.split(told) for part in programs.get(word, [word])]
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command, cwd=path.parent, capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in "01":
        losses = [float(x) for x in re.findall(rf"rank {rank} step \d+: loss ([\d.]+)", done.stdout)]
        assert len(losses) == 3, done.stdout
        assert losses[-1] < 0.9 * losses[0], done.stdout
