"""tests/run.py: what fails beside other tests runs once more, alone, and is counted by what it does then."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from structure.repository import read

from tests import run

SOMETIMES = """
from pathlib import Path

def test_steady():
    pass

def test_at_the_second_try():
    seen = Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""
NEVER = """
def test_never():
    assert False
"""


def outcome(folder: Path, monkeypatch: pytest.MonkeyPatch, tests: str) -> run.Outcome:
    (folder / "test_some.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(run, "ROOT", folder)
    monkeypatch.setattr(run, "REPORTS", folder)
    pytest_here = [sys.executable, "-m", "pytest", "-q"]
    return run.suite("Some tests", pytest_here, [*pytest_here, "--last-failed"], "--junitxml")


def test_what_passes_at_the_second_try_has_passed_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = outcome(tmp_path, monkeypatch, SOMETIMES)
    assert (got.passed, got.failed, got.second_try) == (2, 0, ["test_at_the_second_try"])


def test_what_fails_twice_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = outcome(tmp_path, monkeypatch, SOMETIMES + NEVER)
    assert (got.passed, got.failed, got.second_try) == (2, 1, ["test_at_the_second_try"])


def test_what_crashes_or_runs_nothing_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(tmp_path, monkeypatch, "").failed == 1
    assert outcome(tmp_path, monkeypatch, "import os\n\ndef test():\n    os._exit(3)\n").failed == 1


def test_nothing_runs_again_where_much_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_AT_SECOND_TRY", 1)
    got = outcome(tmp_path, monkeypatch, SOMETIMES + NEVER)
    assert (got.passed, got.failed, got.second_try) == (1, 2, [])


@pytest.mark.parametrize("soak", [False, True])
def test_short_and_long_forms_get_the_same_second_try(soak: bool) -> None:
    cpp, python = run.suite_commands(jobs=2, soak=soak)
    assert cpp[2][-1] == "--rerun-failed"
    assert python[2][-1] == "--last-failed"


def test_a_second_try_is_said() -> None:
    assert "2 passed (1 at the second try), 0 failed" in run.line_of(run.Outcome("x", 2, 0, 0, 1.0, ["a"]))
    assert "2 passed, 0 failed, 3 skipped" in run.line_of(run.Outcome("x", 2, 0, 3, 1.0))


def test_a_long_form_has_its_time() -> None:
    """A property TIMEOUT of a test would win over what `make soak` gives to ctest."""
    assert "--timeout" in run.suite_commands(jobs=2, soak=True)[0][1]
    assert "TIMEOUT" not in read(Path("tests/CMakeLists.txt")).replace("DISCOVERY_TIMEOUT", "")
    presets = json.loads(read(Path("CMakePresets.json")))["testPresets"]
    assert all(preset["execution"]["timeout"] >= 300 for preset in presets)
