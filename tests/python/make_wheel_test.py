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
    monkeypatch.setattr(module, "with_licences", lambda repaired, _: repaired)
    monkeypatch.setattr(module, "for_older_systems", lambda wheel, folder: (wheel, folder))
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


def test_the_pip_of_debian_12_knows_the_options_of_the_build(
    make_wheel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip 23.0, which has --config-settings and not -C."""
    commands: list[list[str]] = []

    def pip(command: list[str], **_: Any) -> None:
        commands.append(command)
        (tmp_path / "built").mkdir()
        (tmp_path / "built" / NAME).touch()

    monkeypatch.setattr(subprocess, "run", pip)
    make_wheel.build(tmp_path / "built", Path("/include/python3.12"))
    (command,) = commands
    words = command[command.index("wheel") :]
    assert "-C" not in words
    settings = [word for word in words if word.startswith("--config-settings=")]
    assert f"--config-settings=build-dir={make_wheel.TREE}" in settings
    assert "--config-settings=cmake.define.GRADWIRE_ABI3_INCLUDE_DIR=/include/python3.12" in settings


def headers(folder: Path, major: int, minor: int, suffix: str = "") -> Path:
    made = folder / f"python{major}.{minor}{suffix}"
    made.mkdir(parents=True)
    text = f"#define PY_MAJOR_VERSION        {major}\n#define PY_MINOR_VERSION\t{minor}\n"
    (made / "patchlevel.h").write_text(text)
    return made


def test_headers_of_pythons_without_the_stable_abi_are_not_taken(make_wheel: Any, tmp_path: Path) -> None:
    assert make_wheel.stable_abi_of(headers(tmp_path, 3, 12)) == 12
    assert make_wheel.stable_abi_of(headers(tmp_path, 3, 14)) == 14
    assert make_wheel.stable_abi_of(headers(tmp_path, 3, 11)) is None
    assert make_wheel.stable_abi_of(headers(tmp_path, 3, 14, "t")) is None, "the free-threaded build has none"
    assert make_wheel.stable_abi_of(tmp_path / "nothing") is None


def test_the_oldest_headers_that_are_found_are_taken(
    make_wheel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    for minor in (9, 13, 12):
        headers(tmp_path / "versions" / f"3.{minor}.1" / "include", 3, minor)
    found = make_wheel.stable_abi_headers()
    assert make_wheel.stable_abi_of(found) == 12


def test_a_folder_without_headers_is_refused(
    make_wheel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["make_wheel.py", "--abi3-include", str(tmp_path)])
    with pytest.raises(SystemExit):
        make_wheel.main()
    assert f"{tmp_path} has no headers of Python 3.12 or later" in capsys.readouterr().err


def test_without_headers_the_wheel_of_this_python_is_made_alone(
    make_wheel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / NAME
    made.write_text("wheel")
    monkeypatch.setattr("sys.argv", ["make_wheel.py"])
    monkeypatch.setattr(make_wheel, "stable_abi_headers", lambda: None)
    monkeypatch.setattr(make_wheel, "build", lambda folder, headers: made)
    monkeypatch.setattr(make_wheel, "repair", lambda wheel, folder: wheel)
    monkeypatch.setattr(make_wheel, "for_stable_abi", lambda wheel: pytest.fail("there are no headers"))
    assert make_wheel.main() == 0
    said = capsys.readouterr()
    assert "no headers of Python 3.12 or later were found; only the wheel of this Python is made" in said.err
    assert said.out.count(".whl") == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "cp311-cp311-manylinux_2_34_x86_64",
            "Python 3.11 and glibc 2.34 or later: Debian 12, Ubuntu 22.04, RHEL 9",
        ),
        (
            "cp312-abi3-manylinux_2_35_aarch64",
            "Python 3.12 or later and glibc 2.35 or later: Debian 12, Ubuntu 22.04",
        ),
        (
            "cp312-abi3-manylinux_2_34_x86_64.manylinux_2_36_x86_64",
            "Python 3.12 or later and glibc 2.34 or later",
        ),
        ("cp313-cp313-manylinux_2_44_x86_64", "Python 3.13 and glibc 2.44 or later"),
        ("cp311-cp311-linux_x86_64", "Python 3.11 and the libraries of this machine"),
    ],
)
def test_it_says_what_a_wheel_needs(make_wheel: Any, name: str, expected: str) -> None:
    assert make_wheel.needs(Path(f"gradwire-2.0-{name}.whl")).startswith(expected)


def test_what_a_wheel_needs_is_printed(
    make_wheel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / NAME
    made.write_text("wheel")
    monkeypatch.setattr("sys.argv", ["make_wheel.py"])
    monkeypatch.setattr(make_wheel, "stable_abi_headers", lambda: None)
    monkeypatch.setattr(make_wheel, "build", lambda folder, headers: made)
    monkeypatch.setattr(make_wheel, "repair", lambda wheel, folder: wheel)
    assert make_wheel.main() == 0
    assert "needs Python 3.11 and glibc 2.36 or later: Debian 12" in capsys.readouterr().out
