"""Runs the style checks, the C++ tests and the Python tests, and ends with one line: `N passed, N failed`.

    make test                                  everything (builds and installs first)
    make test ONLY=kvstore                     one library's C++ tests
    make test ONLY=tests/python/kv_test.py     a file or a folder of tests; several words, each of either kind
    make test SINCE=HEAD~1                     what a change concerns, as far as names and imports tell (affected.py)
    make soak                                  everything, in its long form

The experiments' own tests (tests/experiments) are left out where this work, since it left the remote's branch, has
changed neither experiments nor anything that they use. In a fresh clone, and in `make soak`, they run.

Tests run side by side, many of them with deadlines, on machines that others use too. So those that fail run once more,
one at a time, when the rest is done: what fails again has failed. What passes then is counted and named, in
build/test-reports/second-tries.txt too, and is a fault to be found all the same. A check that cannot be run counts as
failed; so does a group of tests of which none ran.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import affected, children, cpp_suite

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "test-reports"
TREE = ROOT / "build" / "release"
CPP_FOLDERS = ["compress", "fusion", "transport", "kvstore"]
PYTHON_FOLDERS = ["python", "tests", "experiments"]
NO_TESTS_COLLECTED = 5  # the exit status of pytest
MOST_AT_SECOND_TRY = 10
"""Where more has failed, something is broken: nothing is run again."""
LONGEST_SECONDS = 300.0
LONGEST_SOAK_SECONDS = 7200.0
LONGEST_PYTHON_SECONDS = 600.0
CRASHED = re.compile(r"worker '\w+' crashed while running")
"""What pytest-xdist says of a test whose process has ended."""
SLOWEST = 20


@dataclass(frozen=True)
class Outcome:
    name: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    second_try: list[str] = field(default_factory=list)
    """Names of the tests among `passed` that failed at first."""
    slowest: list[tuple[float, str]] = field(default_factory=list)


def announce(command: Sequence[str]) -> None:
    print(f"\n--- {' '.join(command[:6])}{' ...' if len(command) > 6 else ''}", flush=True)


def run(command: list[str]) -> tuple[int, float]:
    """Runs a command with its output shown; returns its exit status and the seconds it took."""
    announce(command)
    began = time.monotonic()
    try:
        with children.child(command, cwd=ROOT) as process:
            status = process.wait()
    except FileNotFoundError as error:
        print(error)
        status = 127
    return status, time.monotonic() - began


def check(name: str, command: list[str]) -> Outcome:
    """Runs a command beside others: shows its output in one piece, when it has ended."""
    began = time.monotonic()
    try:
        with children.child(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            output = process.communicate()[0].decode(errors="replace")
        status = process.returncode
    except FileNotFoundError as error:
        status, output = 127, str(error)
    announce(command)
    print(output.rstrip(), flush=True)
    return Outcome(name, int(status == 0), int(status != 0), 0, time.monotonic() - began)


# C++ tests.


def cpp_suite_outcome(
    tree: Path, folders: Sequence[str], patterns: Sequence[str], jobs: int, longest: float
) -> Outcome:
    """Runs C++ tests of some folders. patterns: files of tests; none: all."""
    began = time.monotonic()
    announce([f"C++ tests of {', '.join(folders)}", f"in {os.path.relpath(tree, ROOT)}"])
    times_file = REPORTS / f"{tree.name}-seconds.json"
    seconds = json.loads(times_file.read_text()) if times_file.exists() else {}
    parts: list[cpp_suite.Part] = []
    for program in cpp_suite.programs(tree):
        if program.folder not in folders or (patterns and not program.of_tests):
            continue
        tests = cpp_suite.tests_of(program)
        parts += cpp_suite.parts_of(program, chosen(tests, patterns) if patterns else tests, seconds)
    # Commands that start processes of their own come first, and so do long parts: what is left at the end is short.
    parts.sort(key=lambda part: -expected_seconds(part, seconds))
    results = cpp_suite.run(parts, jobs, longest)
    again = {name: result for name, result in results.items() if result.state == "failed"}
    for name, result in again.items():
        print(f"{result.output.rstrip()}\nfailed: {name}", flush=True)
    second_try: list[str] = []
    if results and 0 < len(again) <= MOST_AT_SECOND_TRY:
        print(f"--- again, one at a time: {', '.join(again)}", flush=True)
        by_name = {name: part for part in parts for name in names_of(part)}
        for name in again:
            part = by_name[name]
            alone = (
                part
                if not part.tests
                else cpp_suite.Part(part.program, (name.removeprefix(part.program.name + "."),))
            )
            retried = cpp_suite.run_part(alone, longest)
            if retried[name].state == "passed":
                second_try.append(name)
            else:
                print(f"{retried[name].output.rstrip()}\nfailed again: {name}", flush=True)
            results |= retried
    times_file.parent.mkdir(parents=True, exist_ok=True)
    times_file.write_text(json.dumps(seconds | {name: result.seconds for name, result in results.items()}))
    count = {
        state: sum(r.state == state for r in results.values()) for state in ("passed", "failed", "skipped")
    }
    slowest = sorted(((r.seconds, name) for name, r in results.items()), reverse=True)[:SLOWEST]
    took = time.monotonic() - began
    failed = count["failed"] + int(count["passed"] == 0)
    return Outcome("C++ tests", count["passed"], failed, count["skipped"], took, sorted(second_try), slowest)


def names_of(part: cpp_suite.Part) -> list[str]:
    return [f"{part.program.name}.{test}" for test in part.tests] or [part.program.name]


def expected_seconds(part: cpp_suite.Part, seconds: dict[str, float]) -> float:
    unknown = cpp_suite.UNKNOWN_SECONDS if part.tests else 60.0
    return sum(seconds.get(name, unknown) for name in names_of(part))


def chosen(tests: Sequence[str], files: Sequence[str]) -> list[str]:
    """Returns those of a program's tests that stand in some files."""
    suites = {suite for file in files for suite in cpp_suite.suites_in(ROOT / file)}
    return [test for test in tests if not suites.isdisjoint(test.rpartition(".")[0].split("/"))]


# Python tests.


@dataclass(frozen=True)
class Cases:
    """The tests in a JUnit report, none if there is no whole report; a test is its class and its name."""

    passed: dict[tuple[str, str], float]
    failed: set[tuple[str, str]]
    skipped: int
    causes: int = 0
    """Tests that failed, and classes and files of which a fixture did, however many tests that left without it."""
    is_cut_short: bool = False
    """Whether a test has ended a process of pytest-xdist, and tests were left out."""

    @staticmethod
    def of(report: Path) -> Cases:
        try:
            cases = list(ElementTree.parse(report).iter("testcase"))
        except (FileNotFoundError, ElementTree.ParseError):
            cases = []
        failed = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
        skipped = [c for c in cases if c.find("skipped") is not None]
        passed = [c for c in cases if c not in failed and c not in skipped]

        def name(case: ElementTree.Element) -> tuple[str, str]:
            return case.get("classname", ""), case.get("name", "")

        seconds = {name(c): float(c.get("time", 0)) for c in passed}
        words = [problem.get("message", "") for case in failed for problem in case]
        cut_short = any(CRASHED.search(text) for text in words)
        unprepared = {name(c)[0] for c in failed if c.find("failure") is None}
        causes = len(unprepared) + sum(c.find("failure") is not None for c in failed)
        return Cases(seconds, {name(c) for c in failed}, len(skipped), causes, cut_short)


def suite(name: str, first: list[str], again: list[str], may_be_empty: bool = False) -> Outcome:
    """Runs tests that write a JUnit report, and those that failed `again`; counts what the reports say.

    may_be_empty: none of the chosen files need have a test of this kind.
    """

    def attempt(command: list[str], report: Path) -> tuple[int, float, Cases]:
        report.unlink(missing_ok=True)
        status, seconds = run([*command, f"--junitxml={report}"])
        return status, seconds, Cases.of(report)

    stem = name.replace(" ", "-")
    status, seconds, cases = attempt(first, REPORTS / f"{stem}.xml")
    if may_be_empty and status == NO_TESTS_COLLECTED:
        return Outcome(name, 0, 0, 0, seconds)
    passed, failed = set(cases.passed), cases.failed
    second_try: set[tuple[str, str]] = set()
    if passed and 0 < cases.causes <= MOST_AT_SECOND_TRY and not cases.is_cut_short:
        status, more, retried = attempt(again, REPORTS / f"{stem}-again.xml")
        seconds += more
        second_try = failed & set(retried.passed)
        failed = failed - second_try
    crashed = not passed or (status != 0 and not failed)  # or it ran nothing: never a success
    slowest = sorted(((took, "::".join(test)) for test, took in cases.passed.items()), reverse=True)[:SLOWEST]
    return Outcome(
        name,
        len(passed) + len(second_try),
        len(failed) + int(crashed),
        cases.skipped,
        seconds,
        sorted("::".join(test) for test in second_try),
        slowest,
    )


def beside_others(jobs: int) -> list[str]:
    """Returns pytest's options for tests that run side by side.

    A file's tests stay together, with what they share; files in order, of which the last folders are the quick ones. A
    test that ends its process ends the run: where xdist starts another process, it can wait for ever.
    """
    return ["-n", str(jobs), "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0"]


def with_deadline() -> list[str]:
    """Returns pytest's options by which a test that hangs ends its process."""
    limit = f"faulthandler_timeout={LONGEST_PYTHON_SECONDS:.0f}"
    return ["-o", limit, "-o", "faulthandler_exit_on_timeout=true"]


def python_suites(jobs: int, soak: bool, places: Sequence[str]) -> list[tuple[str, list[str], list[str]]]:
    """Arguments of suite(). What measures time, and all in the long form, has the machine for itself."""
    pytest = [sys.executable, "-m", "pytest", "-q", *places]
    if soak:
        return [("Python tests", [*pytest, "-m", ""], [*pytest, "-m", "", "--last-failed"])]
    kinds = {"Python tests": "not soak and not alone", "Python tests alone": "alone and not soak"}
    commands = {name: [*pytest, "-m", marks, *with_deadline()] for name, marks in kinds.items()}
    return [
        (
            name,
            [*command, *(beside_others(jobs) if name == "Python tests" else [])],
            [*command, "--last-failed"],
        )
        for name, command in commands.items()
    ]


# All of it.


def cpp_files() -> list[str]:
    folders = [*CPP_FOLDERS, "python/src", *(f"tests/{folder}" for folder in CPP_FOLDERS), "experiments"]
    files = [f for d in folders for f in (ROOT / d).rglob("*")] + list((ROOT / "tests").glob("*"))
    return sorted(str(f) for f in files if f.suffix in {".h", ".cpp", ".cu"})


def checks(soak: bool) -> list[tuple[str, list[str]]]:
    python = [sys.executable, "-m"]
    clang_format = [shutil.which("clang-format") or "clang-format", "--dry-run", "-Werror", *cpp_files()]
    return [
        ("clang-format", clang_format),
        ("ruff check", [*python, "ruff", "check", "--quiet", *PYTHON_FOLDERS]),
        ("ruff format", [*python, "ruff", "format", "--check", "--quiet", *PYTHON_FOLDERS]),
        ("mypy", [*python, "mypy"]),
        (
            "hostile bytes",
            [sys.executable, "tests/fuzz.py", *(["--runs=10000000"] if soak else ["--replay"])],
        ),
    ]


@dataclass(frozen=True)
class Plan:
    """What is to run. places: of pytest; none: no Python tests."""

    checks: bool
    cpp_folders: list[str]
    cpp_files: list[str]
    places: list[str]

    @staticmethod
    def everything(with_experiments: bool) -> Plan:
        ignored = [] if with_experiments else ["--ignore=tests/experiments"]
        return Plan(True, CPP_FOLDERS, [], ["tests", *ignored])

    @staticmethod
    def of_words(words: Sequence[str]) -> Plan:
        """Raises: ValueError: a word that is neither a library nor a file or folder of tests."""
        folders, files, places = [], [], []
        for word in words:
            path = Path(word)
            if word in CPP_FOLDERS:
                folders.append(word)
            elif path.suffix == ".cpp" and path.parts[:1] == ("tests",) and (ROOT / path).exists():
                folders.append(path.parts[1])
                files.append(word)
            elif path.parts[:1] == ("tests",) and (ROOT / word.split("::")[0]).exists():
                places.append(word)
            else:
                known = f"{', '.join(CPP_FOLDERS)}, or a file or folder below tests/"
                raise ValueError(f"ONLY={word!r} is nothing that can be tested: expected {known}")
        if files and len(folders) > len(files):
            raise ValueError(
                "ONLY: a library and single files of C++ tests cannot be combined; name one kind"
            )
        return Plan(False, list(dict.fromkeys(folders)), files, places)

    @staticmethod
    def since(commit: str) -> Plan:
        """Raises: ValueError: there is no such commit."""
        changed = affected.changed_since(commit)
        tests = affected.PythonTests().affected(changed)
        places = [str(test) for test in tests] + (["tests/structure"] if changed else [])
        return Plan(bool(changed), affected.cpp_folders(changed), [], places)


def line_of(outcome: Outcome) -> str:
    second = f" ({len(outcome.second_try)} at the second try)" if outcome.second_try else ""
    skipped = f", {outcome.skipped} skipped" if outcome.skipped else ""
    counts = f"{outcome.passed} passed{second}, {outcome.failed} failed{skipped}"
    return f"{outcome.name:18} {outcome.seconds:6.1f} s  {counts}"


def closing_line(outcomes: Sequence[Outcome]) -> str:
    passed, failed = sum(o.passed for o in outcomes), sum(o.failed for o in outcomes)
    second = sum(len(o.second_try) for o in outcomes)
    return f"{passed} passed, {failed} failed" + (f", {second} at the second try" if second else "")


def carry_out(plan: Plan, tree: Path, jobs: int, soak: bool, longest: float) -> list[Outcome]:
    outcomes: list[Outcome] = []
    beside: list[Outcome] = []
    thread = threading.Thread(
        target=lambda: beside.extend(check(*each) for each in checks(soak)) if plan.checks else None
    )
    thread.start()
    if plan.cpp_folders:
        outcomes.append(cpp_suite_outcome(tree, plan.cpp_folders, plan.cpp_files, jobs, longest))
    suites = python_suites(jobs, soak, plan.places) if plan.places else []
    for number, each in enumerate(suites):
        if number == len(suites) - 1:
            thread.join()  # the last one may be of tests that need the machine for themselves
        outcomes.append(suite(*each, may_be_empty=not plan.checks))
    thread.join()
    return [*beside, *outcomes]


def report(outcomes: Sequence[Outcome]) -> None:
    print(f"\nThe {SLOWEST} slowest tests:")
    slowest = sorted((each for o in outcomes for each in o.slowest), reverse=True)[:SLOWEST]
    for seconds, name in slowest:
        print(f"{seconds:7.1f} s  {name}")
    print()
    for o in outcomes:
        print(line_of(o))
    tries = [test for o in outcomes for test in o.second_try]
    for test in tries:
        print(f"passed at the second try, alone: {test}")
    (REPORTS / "second-tries.txt").write_text("".join(f"{test}\n" for test in tries))
    print(closing_line(outcomes), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=2 * cores, help="tests at a time (default: %(default)s)")
    parser.add_argument("--soak", action="store_true", help="the long forms too")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="WORD", help="libraries, and files or folders of tests"
    )
    parser.add_argument("--since", metavar="COMMIT", help="what a change since then concerns")
    parser.add_argument("--longest", type=float, metavar="SECONDS", help="for one C++ test")
    parser.add_argument("--cpp", action="store_true", help="the C++ tests alone")
    parser.add_argument(
        "--tree", type=Path, default=TREE, help="build tree of the C++ tests (default: %(default)s)"
    )
    options = parser.parse_args()
    REPORTS.mkdir(parents=True, exist_ok=True)
    children.end_run_on_signals()
    try:
        if options.only:
            plan = Plan.of_words(options.only)
        elif options.since:
            plan = Plan.since(options.since)
        else:
            base = None if options.soak else affected.base_commit()
            plan = Plan.everything(
                base is None or affected.concerns_experiments(affected.changed_since(base))
            )
    except ValueError as error:
        parser.error(str(error))
    if options.cpp:
        plan = dataclasses.replace(plan, checks=False, places=[])
    longest = options.longest or (LONGEST_SOAK_SECONDS if options.soak else LONGEST_SECONDS)
    outcomes = carry_out(plan, options.tree.resolve(), options.jobs, options.soak, longest)
    report(outcomes)
    return int(any(o.failed for o in outcomes) or not any(o.passed for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
