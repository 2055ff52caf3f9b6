"""python/make_dist.py: what it refuses before it makes packages, and what it checks. `make dist` runs all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from integration.dist_environments import wheel_for
from python.experiment_files import imported

ROOT = Path(__file__).resolve().parents[2]
WHEELS = (
    "gradwire-1.2.0-cp311-cp311-manylinux_2_34_x86_64.whl",
    "gradwire-1.2.0-cp312-abi3-manylinux_2_34_x86_64.whl",
)
SOURCE = "gradwire-1.2.0.tar.gz"


@pytest.fixture
def make_dist() -> Any:
    with imported(ROOT / "python", ["wheel_licences", "wheel_symbols", "make_wheel", "make_dist"]) as modules:
        yield modules["make_dist"]


def tree(folder: Path, version: str, heading: str) -> Path:
    (folder / "CMakeLists.txt").write_text(f"project(gradwire VERSION {version} LANGUAGES CXX)\n")
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n\n- text\n")
    return folder


def filled(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("package")
    return folder


def test_the_version_needs_a_dated_section_in_the_changelog(make_dist: Any, tmp_path: Path) -> None:
    assert make_dist.version_of(tree(tmp_path, "1.2.0", "## [1.2.0] - 2026-11-27")) == "1.2.0"
    for heading in ("## [1.1.0] - 2026-11-27", "## [1.2.0]", "## 1.2.0, unreleased"):
        with pytest.raises(ValueError, match=r"expected a heading '## \[1\.2\.0\] - YYYY-MM-DD'"):
            make_dist.version_of(tree(tmp_path, "1.2.0", heading))


def test_this_tree_has_the_section_of_its_version(make_dist: Any) -> None:
    assert make_dist.version_of(ROOT).count(".") == 2


def test_files_that_are_in_no_commit_are_named(make_dist: Any, tmp_path: Path) -> None:
    assert make_dist.uncommitted(tmp_path) == [], "no clone"
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    filled(tmp_path, *(f"file{number}" for number in range(7)))
    changed = make_dist.uncommitted(tmp_path)
    assert changed == [f"file{number}" for number in range(7)]
    assert make_dist.shortened(changed) == "file0, file1, file2, file3, file4 and 2 more"


def test_both_wheels_must_be_there(make_dist: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="found none"):
        make_dist.wheels_of(tmp_path, "1.2.0")
    filled(tmp_path, WHEELS[0], "gradwire-1.1.0-cp312-abi3-manylinux_2_34_x86_64.whl")
    with pytest.raises(FileNotFoundError, match=f"one of them cp312-abi3, .*found {WHEELS[0]}"):
        make_dist.wheels_of(tmp_path, "1.2.0")
    filled(tmp_path, WHEELS[1])
    assert [wheel.name for wheel in make_dist.wheels_of(tmp_path, "1.2.0")] == list(WHEELS)


def prepared(make_dist: Any, monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Returns what the script does, once it has run: all of its steps are replaced by words."""
    done: list[str] = []

    def make_source(root: Path, folder: Path, version: str) -> Path:
        done.append("source")
        return filled(folder, SOURCE) / SOURCE

    def make_wheels(folder: Path) -> None:
        done.append("wheels")
        filled(folder, *WHEELS)

    monkeypatch.setattr(make_dist, "ROOT", folder)
    monkeypatch.setattr(make_dist, "version_of", lambda root: "1.2.0")
    monkeypatch.setattr(make_dist, "uncommitted", lambda root: [])
    monkeypatch.setattr(make_dist, "make_source", make_source)
    monkeypatch.setattr(make_dist.make_wheel, "make", make_wheels)
    monkeypatch.setattr(make_dist, "check_metadata", lambda packages: done.extend(p.name for p in packages))
    return done


def test_wheels_of_this_version_are_made_anew(
    make_dist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = prepared(make_dist, monkeypatch, tmp_path)
    stale = "gradwire-1.2.0-cp311-cp311-manylinux_2_36_x86_64.whl"
    other = "gradwire-1.1.0-cp311-cp311-manylinux_2_36_x86_64.whl"
    filled(tmp_path / "dist", stale, other)
    monkeypatch.setattr("sys.argv", ["make_dist.py", "--folder", str(tmp_path / "dist")])
    assert make_dist.main() == 0
    assert done == ["source", "wheels", SOURCE, *WHEELS]
    assert {file.name for file in (tmp_path / "dist").iterdir()} == {SOURCE, *WHEELS, other}
    assert "needs Python 3.12 or later and glibc 2.34" in capsys.readouterr().out


def test_wheels_that_are_there_can_be_taken(
    make_dist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = prepared(make_dist, monkeypatch, tmp_path)
    command = ["make_dist.py", "--reuse-wheels", "--folder", str(tmp_path / "dist")]
    monkeypatch.setattr("sys.argv", command)
    assert make_dist.main() == 1
    assert "expected two wheels of 1.2.0" in capsys.readouterr().err
    filled(tmp_path / "dist", *WHEELS)
    done.clear()
    assert make_dist.main() == 0
    assert done == ["source", SOURCE, *WHEELS]


def test_a_source_distribution_has_what_was_committed(
    make_dist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_dist.make_source(ROOT, tmp_path, make_dist.version_of(ROOT))
    assert made.stat().st_size > 1e6
    monkeypatch.setattr(make_dist, "git", lambda root, *arguments: "LICENSE\nmkdocs.yml\n.venv/bin/python\n")
    with pytest.raises(LookupError, match=r"are missing: \.venv/bin/python"):
        make_dist.make_source(ROOT, tmp_path, make_dist.version_of(ROOT))


@pytest.mark.parametrize(("minor", "expected"), [(11, WHEELS[0]), (12, WHEELS[1]), (14, WHEELS[1])])
def test_an_environment_gets_the_wheel_of_its_python(tmp_path: Path, minor: int, expected: str) -> None:
    assert wheel_for(filled(tmp_path, *WHEELS), minor).name == expected


def test_a_python_without_a_wheel_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no wheel for Python 3\.10"):
        wheel_for(filled(tmp_path, *WHEELS), 10)
    assert sys.version_info >= (3, 10)
