"""Runs the style checks, the C++ tests and the Python tests, and ends with one line: `N passed, N failed`.

    make test        (builds and installs first)

A check that cannot be run counts as failed; so does a group of tests of which none ran.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "test-reports"
CPP_FOLDERS = ["compress", "fusion", "transport", "kvstore"]
PYTHON_FOLDERS = ["python", "tests", "experiments"]


@dataclass(frozen=True)
class Outcome:
    name: str
    passed: int
    failed: int
    skipped: int
    seconds: float


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


def suite(name: str, command: list[str], report: Path) -> Outcome:
    """Runs a test program that writes a JUnit report, and counts what the report says."""
    report.unlink(missing_ok=True)
    status, seconds = run(command)
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))
    except (FileNotFoundError, ElementTree.ParseError):
        cases = []
    skipped = sum(case.find("skipped") is not None for case in cases)
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    passed = len(cases) - failed - skipped
    if passed == 0 or (status != 0 and failed == 0):  # it crashed, or ran nothing: never a success
        failed += 1
    return Outcome(name, passed, failed, skipped, seconds)


def cpp_files() -> list[str]:
    folders = [*CPP_FOLDERS, "python/src", *(f"tests/{folder}" for folder in CPP_FOLDERS), "experiments"]
    return sorted(str(f) for d in folders for f in (ROOT / d).rglob("*") if f.suffix in {".h", ".cpp", ".cu"})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="tests at a time")
    parser.add_argument("--soak", action="store_true", help="run the long forms too")
    options = parser.parse_args()
    REPORTS.mkdir(parents=True, exist_ok=True)
    python = [sys.executable, "-m"]
    cpp_report, python_report = REPORTS / "cpp.xml", REPORTS / "python.xml"
    ctest = ["ctest", "--preset", "release", "-j", str(options.jobs), "--output-junit", str(cpp_report)]
    pytest = ["pytest", "-q", f"--junitxml={python_report}"]
    if options.soak:  # the long forms need the machine for themselves
        ctest += ["--timeout", "7200"]
        pytest += ["-m", ""]
    else:  # most tests wait for jobs to start and end; a file's tests stay together, with what they share
        pytest += ["-m", "not soak", "-n", str(options.jobs), "--dist", "loadfile"]
    outcomes = [
        check(
            "clang-format",
            [shutil.which("clang-format") or "clang-format", "--dry-run", "-Werror", *cpp_files()],
        ),
        check("ruff check", [*python, "ruff", "check", "--quiet", *PYTHON_FOLDERS]),
        check("ruff format", [*python, "ruff", "format", "--check", "--quiet", *PYTHON_FOLDERS]),
        check("mypy", [*python, "mypy"]),
        check(
            "decoders fuzzed",
            [sys.executable, "tests/fuzz.py", *(["--runs=10000000"] if options.soak else [])],
        ),
        suite("C++ tests", ctest, cpp_report),
        suite("Python tests", [*python, *pytest], python_report),
    ]
    print()
    for o in outcomes:
        skipped = f", {o.skipped} skipped" if o.skipped else ""
        print(f"{o.name:15} {o.seconds:6.1f} s  {o.passed} passed, {o.failed} failed{skipped}")
    passed, failed = sum(o.passed for o in outcomes), sum(o.failed for o in outcomes)
    print(f"{passed} passed, {failed} failed", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
