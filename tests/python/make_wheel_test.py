"""python/make_wheel.py: what it does to the folder that it is given. tests/integration/wheel_test.py runs all of it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from python.experiment_files import load

SCRIPT = Path(__file__).resolve().parents[2] / "python" / "make_wheel.py"
NAME = "gradwire-2.0-cp311-cp311-manylinux_2_36_x86_64.whl"


@pytest.fixture
def make_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script with a folder of its own to work in, and with tools that need not be there."""
    module: Any = load(SCRIPT)
    monkeypatch.setattr(module, "REPAIRED", tmp_path / "repaired")
    monkeypatch.setattr(module, "tools", lambda: tmp_path)
    monkeypatch.setattr(module, "with_licences", lambda repaired, *_: repaired)
    return module


def auditwheel(command: list[str], **_: Any) -> None:
    folder = Path(command[command.index("--wheel-dir") + 1])
    folder.mkdir(parents=True)
    (folder / NAME).write_text("new")


def failing(command: list[str], **_: Any) -> None:
    raise subprocess.CalledProcessError(1, command)


def dist(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    folder.mkdir()
    for name in (NAME, "gradwire-1.0-cp311-cp311-linux_x86_64.whl"):
        (folder / name).write_text("old")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_only_the_wheel_of_its_name_is_replaced(
    make_wheel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = dist(tmp_path)
    monkeypatch.setattr(subprocess, "run", auditwheel)
    assert make_wheel.repair(tmp_path / "unrepaired.whl", folder) == folder / NAME
    assert contents(folder) == {NAME: "new", "gradwire-1.0-cp311-cp311-linux_x86_64.whl": "old"}


def test_a_repair_that_fails_leaves_the_folder_as_it_was(
    make_wheel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = dist(tmp_path)
    before = contents(folder)
    monkeypatch.setattr(subprocess, "run", failing)
    with pytest.raises(subprocess.CalledProcessError):
        make_wheel.repair(tmp_path / "unrepaired.whl", folder)
    assert contents(folder) == before
