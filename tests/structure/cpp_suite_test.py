"""tests/cpp_suite.py: C++ tests run in parts; one that crashes or hangs fails alone, and the others go on."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from tests import cpp_suite, run
from tests.cpp_suite import Part, Program

PROGRAM = """#!{python}
import os, signal, sys, time
options = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
NAMES = "Good.One Good.Two Bad.Crashes Bad.Fails Bad.Hangs Late.Skipped Late.Last Prefix/Many.Of/0".split()
if "--gtest_list_tests" in sys.argv:
    suite = None
    for name in NAMES:
        if name.rpartition(".")[0] != suite:
            suite = name.rpartition(".")[0]
            print(suite + ".")
        print("  " + name.rpartition(".")[2] + ("  # GetParam() = 3" if "/" in name else ""))
    sys.exit()
wanted = options["--gtest_filter"].split(":")
status = 0
for name in NAMES:
    if name not in wanted:
        continue
    print("[ RUN      ] " + name, flush=True)
    ending = "      OK"
    if name == "Bad.Crashes":
        print("about to crash", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "Bad.Fails":
        print("x.cpp:3: Failure\\nexpected this", flush=True)
        ending, status = " FAILED ", 1
    if name == "Bad.Hangs":
        time.sleep(600)
    if name == "Late.Skipped":
        ending = " SKIPPED"
    print("[ %s ] %s (%d ms)" % (ending, name, 7), flush=True)
print("[  FAILED  ] 1 test, listed below:\\n[  FAILED  ] Bad.Fails")
sys.exit(status)
"""
NAMES = [
    *("Good.One", "Good.Two", "Bad.Crashes", "Bad.Fails", "Bad.Hangs", "Late.Skipped", "Late.Last"),
    "Prefix/Many.Of/0",
]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    file = tmp_path / "program"
    file.write_text(PROGRAM.replace("{python}", sys.executable))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return Program("some", "kvstore", (str(file),))


def test_tests_are_listed(program: Program) -> None:
    assert sorted(cpp_suite.tests_of(program)) == sorted(NAMES)
    nothing = Program("no", "kvstore", ("/bin/true",))
    with pytest.raises(RuntimeError, match="/bin/true lists no tests"):
        cpp_suite.tests_of(nothing)


def test_what_crashes_or_hangs_fails_alone(program: Program) -> None:
    results = cpp_suite.run_part(Part(program, tuple(NAMES)), longest_seconds=3)
    states = {name.removeprefix("some."): result.state for name, result in results.items()}
    assert states == dict.fromkeys(NAMES, "passed") | {
        **dict.fromkeys(["Bad.Crashes", "Bad.Fails", "Bad.Hangs"], "failed"),
        "Late.Skipped": "skipped",
    }
    assert "about to crash" in results["some.Bad.Crashes"].output
    assert "signal 11 (SIGSEGV)" in results["some.Bad.Crashes"].output
    assert "expected this" in results["some.Bad.Fails"].output
    assert "killed: nothing had ended for 3 s" in results["some.Bad.Hangs"].output
    assert results["some.Good.One"].seconds == 0.007


def test_a_program_that_does_not_start_fails_all_its_tests() -> None:
    broken = Program("broken", "kvstore", ("/bin/false",))
    results = cpp_suite.run_part(Part(broken, ("A.B", "A.C")), longest_seconds=3)
    assert {result.state for result in results.values()} == {"failed"}
    assert set(results) == {"broken.A.B", "broken.A.C"}
    assert "ended with status 1" in results["broken.A.B"].output


def test_a_command_is_one_test() -> None:
    good = Part(Program("mpi.2", "transport", ("/bin/true",), of_tests=False), ())
    late = Part(Program("mpi.3", "transport", ("/bin/sleep", "600"), of_tests=False), ())
    results = cpp_suite.run([good, late], jobs=2, longest_seconds=1)
    assert results["mpi.2"].state == "passed"
    assert results["mpi.3"].state == "failed"
    assert "killed after 1 s" in results["mpi.3"].output


def test_parts_are_of_bounded_length_and_begin_with_long_tests(program: Program) -> None:
    tests = [f"S.T{i}" for i in range(100)]
    parts = cpp_suite.parts_of(program, tests, {"some.S.T50": 9.0, "some.S.T51": 1.9})
    assert parts[0].tests == ("S.T50",)
    assert parts[1].tests[0] == "S.T51"
    assert sorted(test for part in parts for test in part.tests) == sorted(tests)
    assert max(len(part.tests) for part in parts) <= cpp_suite.PART_TESTS


def test_a_second_try_is_alone_and_counted(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    (tree / "tests").mkdir(parents=True)
    row = f'{{"name": "some", "folder": "kvstore", "of_tests": true, "command": ["{program.command[0]}"]}}'
    (tree / "tests" / "programs.json").write_text(f"[{row}]")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "REPORTS", tmp_path / "reports")
    tried: list[Part] = []

    def second(part: Part, longest: float) -> dict[str, cpp_suite.Result]:
        tried.append(part)
        state = "failed" if part.tests == ("Bad.Hangs",) else "passed"
        return {f"some.{part.tests[0]}": cpp_suite.Result(state, 1.0)}

    results = cpp_suite.run(cpp_suite.parts_of(program, NAMES, {}), 2, 3)
    monkeypatch.setattr(cpp_suite, "run", lambda *_: dict(results))
    monkeypatch.setattr(cpp_suite, "run_part", second)
    outcome = run.cpp_suite_outcome(tree, ["kvstore"], [], 2, 3)
    assert sorted(part.tests for part in tried) == [("Bad.Crashes",), ("Bad.Fails",), ("Bad.Hangs",)]
    assert (outcome.passed, outcome.failed, outcome.skipped) == (6, 1, 1)
    assert outcome.second_try == ["some.Bad.Crashes", "some.Bad.Fails"]
    assert (tmp_path / "reports" / "tree-seconds.json").exists()


def test_files_choose_tests_by_their_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ROOT", tmp_path)
    (tmp_path / "x_test.cpp").write_text("TEST(Good, One) {\nTEST_P(Many, Of) {\n  TEST(NotThis, One)\n")
    assert run.chosen(NAMES, ["x_test.cpp"]) == ["Good.One", "Good.Two", "Prefix/Many.Of/0"]
