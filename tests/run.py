"""Runs the style checks, the C++ tests and the Python tests, and ends with one line: `N passed, N failed`.

    make test        (builds and installs first; `make soak` adds the long forms)

A check that cannot be run counts as failed; so does a group of tests of which none ran.

Tests run side by side, many of them with deadlines, on machines that others use too. So those that fail run once more,
one at a time, when the rest is done, in `make soak` as in `make test`: what fails again has failed, what passes then is
counted and named as passed at the second try, and is worth a look all the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "test-reports"
CPP_FOLDERS = ["compress", "fusion", "transport", "kvstore"]
PYTHON_FOLDERS = ["python", "tests", "experiments"]
MOST_AT_SECOND_TRY = 10
"""Where more tests fail, something is broken: nothing is run again."""
LONGEST_SOAK_SECONDS = 7200


@dataclass(frozen=True)
class Outcome:
    name: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    second_try: list[str] = field(default_factory=list)
    """Names of the tests among `passed` that failed at first."""


def run(command: list[str]) -> tuple[int, float]:
    """Runs a command with its output shown; returns its exit status and the seconds it took."""
    print(f"\n--- {' '.join(command[:6])}{' ...' if len(command) > 6 else ''}", flush=True)
    began = time.monotonic()
    try:
        status = subprocess.run(command, cwd=ROOT).returncode
    except FileNotFoundError as error:
        print(error)
        status = 127
    return status, time.monotonic() - began


def check(name: str, command: list[str]) -> Outcome:
    status, seconds = run(command)
    return Outcome(name, int(status == 0), int(status != 0), 0, seconds)


@dataclass(frozen=True)
class Cases:
    """The tests in a JUnit report, none if there is no whole report; a test is its class and its name."""

    passed: set[tuple[str, str]]
    failed: set[tuple[str, str]]
    skipped: int

    @staticmethod
    def of(report: Path) -> Cases:
        try:
            cases = list(ElementTree.parse(report).iter("testcase"))
        except (FileNotFoundError, ElementTree.ParseError):
            cases = []
        failed = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
        skipped = [c for c in cases if c.find("skipped") is not None]
        passed = [c for c in cases if c not in failed and c not in skipped]

        def names(some: list[ElementTree.Element]) -> set[tuple[str, str]]:
            return {(c.get("classname", ""), c.get("name", "")) for c in some}

        return Cases(names(passed), names(failed), len(skipped))


def suite(name: str, first: list[str], again: list[str], report_option: str) -> Outcome:
    """Runs tests that write a JUnit report, and those that failed `again`; counts what the reports say."""

    def attempt(command: list[str], report: Path) -> tuple[int, float, Cases]:
        report.unlink(missing_ok=True)
        status, seconds = run([*command, f"{report_option}={report}"])
        return status, seconds, Cases.of(report)

    stem = name.split()[0]
    status, seconds, cases = attempt(first, REPORTS / f"{stem}.xml")
    passed, failed = cases.passed, cases.failed
    second_try: set[tuple[str, str]] = set()
    if passed and 0 < len(failed) <= MOST_AT_SECOND_TRY:
        status, more, retried = attempt(again, REPORTS / f"{stem}-again.xml")
        seconds += more
        second_try = failed & retried.passed
        failed = failed - second_try
    crashed = not passed or (status != 0 and not failed)  # or it ran nothing: never a success
    return Outcome(
        name,
        len(passed) + len(second_try),
        len(failed) + int(crashed),
        cases.skipped,
        seconds,
        sorted(test for _, test in second_try),
    )


def cpp_files() -> list[str]:
    folders = [*CPP_FOLDERS, "python/src", *(f"tests/{folder}" for folder in CPP_FOLDERS), "experiments"]
    return sorted(str(f) for d in folders for f in (ROOT / d).rglob("*") if f.suffix in {".h", ".cpp", ".cu"})


def suite_commands(jobs: int, soak: bool) -> list[tuple[str, list[str], list[str], str]]:
    """Arguments of suite(). What fails gets its second try in both forms."""
    ctest = ["ctest", "--preset", "release"]
    pytest = [sys.executable, "-m", "pytest", "-q"]
    beside: list[str] = []
    if soak:  # the long forms need the machine for themselves
        ctest += ["--timeout", str(LONGEST_SOAK_SECONDS)]
        pytest += ["-m", ""]
    else:  # most tests wait for jobs to start and end; a file's tests stay together, with what they share
        pytest += ["-m", "not soak"]
        beside = ["-n", str(jobs), "--dist", "loadfile"]
    return [
        ("C++ tests", [*ctest, "-j", str(jobs)], [*ctest, "--rerun-failed"], "--output-junit"),
        ("Python tests", [*pytest, *beside], [*pytest, "--last-failed"], "--junitxml"),
    ]


def line_of(outcome: Outcome) -> str:
    second = f" ({len(outcome.second_try)} at the second try)" if outcome.second_try else ""
    skipped = f", {outcome.skipped} skipped" if outcome.skipped else ""
    counts = f"{outcome.passed} passed{second}, {outcome.failed} failed{skipped}"
    return f"{outcome.name:15} {outcome.seconds:6.1f} s  {counts}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="tests at a time")
    parser.add_argument("--soak", action="store_true", help="run the long forms too")
    options = parser.parse_args()
    REPORTS.mkdir(parents=True, exist_ok=True)
    python = [sys.executable, "-m"]
    outcomes = [
        check(
            "clang-format",
            [shutil.which("clang-format") or "clang-format", "--dry-run", "-Werror", *cpp_files()],
        ),
        check("ruff check", [*python, "ruff", "check", "--quiet", *PYTHON_FOLDERS]),
        check("ruff format", [*python, "ruff", "format", "--check", "--quiet", *PYTHON_FOLDERS]),
        check("mypy", [*python, "mypy"]),
        check(
            "hostile bytes",
            [sys.executable, "tests/fuzz.py", *(["--runs=10000000"] if options.soak else [])],
        ),
        *(suite(*each) for each in suite_commands(options.jobs, options.soak)),
    ]
    print()
    for o in outcomes:
        print(line_of(o))
    for o in outcomes:
        for test in o.second_try:
            print(f"passed at the second try, alone: {test}")
    passed, failed = sum(o.passed for o in outcomes), sum(o.failed for o in outcomes)
    print(f"{passed} passed, {failed} failed", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
