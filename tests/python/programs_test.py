"""Programs of a job: a command that is there, one that is no launcher, and where gradwire-server is looked for."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from gradwire.launch.programs import find_server_program, refuse_launcher, require_program
from gradwire.settings.definitions import Settings


def program_in(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_program_is_a_file_or_on_the_path(tmp_path: Path) -> None:
    path = program_in(tmp_path, "train")
    require_program("run", [str(path)])
    require_program("run", ["train", "--epochs", "3"], str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"^ab: train is not a program: expected a file.*on PATH$"):
        require_program("ab", ["train"])
    path.chmod(0o644)
    with pytest.raises(FileNotFoundError, match="is not a program"):
        require_program("run", [str(path)])


def test_a_python_that_is_missing_is_answered_with_that_of_gradwire(tmp_path: Path) -> None:
    beside = Path(sys.executable).name
    for name in ("python", "python3.11", beside):
        with pytest.raises(FileNotFoundError, match=f"the Python of this gradwire is {sys.executable}"):
            require_program("run", [name], str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"on PATH$"):
        require_program("run", ["/nowhere/python"])


def test_a_script_that_is_no_program_is_run_by_python(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(FileNotFoundError, match=f"to run a script: `python {script}`$"):
        require_program("run", [str(script)])
    with pytest.raises(FileNotFoundError, match=r"on PATH$"):
        require_program("run", [str(tmp_path / "other.py")])


@pytest.mark.parametrize("name", ["", ".", "..", "a b"])
def test_what_cannot_be_a_program_is_named_as_a_shell_takes_it(name: str) -> None:
    """An empty variable of a script was "Invalid name ''"."""
    with pytest.raises(
        FileNotFoundError, match=rf"^run: {re.escape(shlex.quote(name))} is not a program: .*on PATH$"
    ):
        require_program("run", [name])


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["torchrun", "train.py"], "torchrun"),
        (["/opt/mpi/bin/mpirun", "-n", "2", "train"], "mpirun"),
        (["python", "-u", "-m", "torch.distributed.launch", "train.py"], r"torch\.distributed\.launch"),
    ],
)
def test_a_launcher_is_no_worker(command: list[str], name: str) -> None:
    with pytest.raises(ValueError, match=f"^run: {name} starts workers, and so does gradwire: give"):
        refuse_launcher("run", command)
    with pytest.raises(ValueError, match=f"^plan: {name} is for many: give"):
        refuse_launcher("plan", command, why="is for many")


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py", "torchrun"],
        ["python", "-m", "torch.distributed.elastic"],
        ["python", "a.py", "b", "c", "-m", "torch.distributed.run"],
    ],
)
def test_what_only_looks_like_a_launcher_is_a_worker(command: list[str]) -> None:
    refuse_launcher("run", command)


def test_the_server_program_that_is_named_counts(tmp_path: Path) -> None:
    path = str(program_in(tmp_path, "my-server"))
    assert find_server_program(Settings(server_program=path)) == path
    with pytest.raises(
        FileNotFoundError, match="GRADWIRE_SERVER_PROGRAM=/nowhere/server is not a program: correct or unset"
    ):
        find_server_program(Settings(server_program="/nowhere/server"))


def test_the_server_program_is_looked_for_beside_the_script_beside_python_and_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, environment, on_path = (tmp_path / name for name in ("script", "environment", "path"))
    for folder in (script, environment, on_path):
        folder.mkdir()
    monkeypatch.setattr(sys, "argv", [str(script / "gradwire")])
    monkeypatch.setattr(sys, "executable", str(environment / "python"))
    monkeypatch.setenv("PATH", str(on_path))
    with pytest.raises(FileNotFoundError, match=f"no program gradwire-server in {script}, {environment} or"):
        find_server_program(Settings())
    for folder in (on_path, environment, script):  # the last wins
        path = program_in(folder, "gradwire-server")
        assert find_server_program(Settings()) == str(path)
