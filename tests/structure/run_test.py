"""tests/run.py: what fails beside other tests runs once more, alone, and is counted by what it does then."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

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


def outcome(folder: Path, monkeypatch: pytest.MonkeyPatch, tests: str, *options: str) -> run.Outcome:
    (folder / "test_some.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(run, "ROOT", folder)
    monkeypatch.setattr(run, "REPORTS", folder)
    pytest_here = [sys.executable, "-m", "pytest", "-q", *options]
    return run.suite("Some tests", pytest_here, [*pytest_here, "--last-failed"])


def test_what_passes_at_the_second_try_has_passed_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = outcome(tmp_path, monkeypatch, SOMETIMES)
    assert (got.passed, got.failed, got.second_try) == (2, 0, ["test_some::test_at_the_second_try"])


def test_what_fails_twice_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = outcome(tmp_path, monkeypatch, SOMETIMES + NEVER)
    assert (got.passed, got.failed, got.second_try) == (2, 1, ["test_some::test_at_the_second_try"])


def test_what_crashes_or_runs_nothing_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(tmp_path, monkeypatch, "").failed == 1
    assert outcome(tmp_path, monkeypatch, "import os\n\ndef test():\n    os._exit(3)\n").failed == 1


def test_chosen_files_need_not_have_tests_of_every_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_some.py").write_text("def test():\n    assert True\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "REPORTS", tmp_path)
    alone = [sys.executable, "-m", "pytest", "-q", "-m", "alone"]
    assert run.suite("Some tests", alone, alone, may_be_empty=True).failed == 0
    assert run.suite("Some tests", alone, alone).failed == 1


@pytest.mark.parametrize("end", ["os.abort()", "time.sleep(50)"])
def test_what_ends_or_holds_up_a_process_beside_others_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(run, "LONGEST_PYTHON_SECONDS", 3.0)
    once = f"import os, time\nfrom pathlib import Path\n\ndef test_once():\n    {end}\n"
    got = outcome(tmp_path, monkeypatch, once + SOMETIMES, *run.with_deadline(), *run.beside_others(2))
    assert got.failed >= 1
    assert got.second_try == []
    assert not list(tmp_path.glob("*-again.xml"))


def test_nothing_runs_again_where_much_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_AT_SECOND_TRY", 1)
    got = outcome(tmp_path, monkeypatch, SOMETIMES + NEVER)
    assert (got.passed, got.failed, got.second_try) == (1, 2, [])


def test_a_fixture_that_fails_is_one_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tests wanted what it makes."""
    monkeypatch.setattr(run, "MOST_AT_SECOND_TRY", 1)
    tests = """
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def cluster():
    seen = Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    if first:
        raise TimeoutError("a port was taken")

@pytest.mark.parametrize("number", range(3))
def test_in_it(cluster, number):
    pass

def test_without_it():
    pass
"""
    got = outcome(tmp_path, monkeypatch, tests)
    assert (got.passed, got.failed, len(got.second_try)) == (4, 0, 3)


def test_what_measures_time_runs_alone() -> None:
    beside, alone = run.python_suites(jobs=2, soak=False, places=["tests"])
    assert beside[1][11:] == run.beside_others(2)
    assert beside[1][4:7] == ["tests", "-m", "not soak and not alone"]
    assert alone[1][4:] == ["tests", "-m", "alone and not soak", *run.with_deadline()]
    ((_, long, again),) = run.python_suites(jobs=2, soak=True, places=["tests"])
    assert "-n" not in long
    assert again[-1] == "--last-failed"


def test_the_closing_line_counts_second_tries() -> None:
    fine = run.Outcome("a", 3, 0, 1, 2.0)
    late = run.Outcome("b", 2, 0, 0, 2.0, ["x"])
    assert run.closing_line([fine]) == "3 passed, 0 failed"
    assert run.closing_line([fine, late]) == "5 passed, 0 failed, 1 at the second try"


def test_a_check_that_cannot_run_has_failed() -> None:
    assert run.check("x", ["/no/such/program"]).failed == 1
    assert run.check("x", ["true"]).passed == 1
