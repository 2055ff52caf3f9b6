"""gradwire.mxnet in one process, under MXNet 1.9.1's own Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from integration.mxnet_environment import variables
from integration.processes import clean_environment
from integration.torch_jobs import case_names

HERE = Path(__file__).parent
PROGRAM = HERE / "mxnet_local_cases.py"


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("mxnet_local")
    done = subprocess.run(
        [sys.executable, HERE / "mxnet_exec.py", PROGRAM, folder],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=clean_environment(folder, variables(folder)),
    )
    return f"{done.stdout}\n{done.stderr}\nended with {done.returncode}"


@pytest.mark.parametrize("name", case_names(PROGRAM))
def test_one_process(name: str, output: str) -> None:
    assert f"{name} passed" in output.splitlines(), output


def test_it_ends_by_itself(output: str) -> None:
    assert output.endswith("ended with 0"), output
