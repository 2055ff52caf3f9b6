"""Runs C++ test programs in parts, side by side, and tells what became of each test.

CMake writes which programs there are, and how they are called, to tests/programs.json of a build tree. A program runs
a few tests at a time, long ones first by what they took last time. A test that crashes or hangs is a failure of its
own: the rest of its part goes on in another process.
"""

from __future__ import annotations

import json
import re
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests import children

State = Literal["passed", "failed", "skipped"]
PART_SECONDS = 2.0
"""A part takes about so long, if its tests take what they took last time, ..."""
PART_TESTS = 40
"""... and has at most so many."""
UNKNOWN_SECONDS = 0.05
_BEGINS = re.compile(r"^\[ RUN      \] (\S+)")
_ENDS = re.compile(r"^\[ *(OK|FAILED|SKIPPED) *\] ([^\s,]+).*\((\d+) ms\)$")
_STATES: dict[str, State] = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}


@dataclass(frozen=True)
class Program:
    """A command. of_tests: it is a program of GoogleTest's; else it is one test, which passes if the command does."""

    name: str
    folder: str
    command: tuple[str, ...]
    of_tests: bool = True


@dataclass(frozen=True)
class Result:
    state: State
    seconds: float
    output: str = ""


@dataclass(frozen=True)
class Part:
    """Tests that one process runs; none: the program is one test."""

    program: Program
    tests: tuple[str, ...]


@dataclass
class _Progress:
    """What a running program has said so far."""

    results: dict[str, Result] = field(default_factory=dict)
    running: str | None = None
    began: float = field(default_factory=time.monotonic)
    lines: list[str] = field(default_factory=list)

    def take(self, line: str) -> None:
        if match := _BEGINS.match(line):
            self.running, self.began, self.lines = match[1], time.monotonic(), []
        elif (match := _ENDS.match(line)) and match[2] == self.running:
            state = _STATES[match[1]]
            output = "" if state == "passed" else "".join(self.lines)
            self.results[match[2]] = Result(state, int(match[3]) / 1e3, output)
            self.running, self.began = None, time.monotonic()
        else:
            self.lines.append(line)


def programs(tree: Path) -> list[Program]:
    """Returns what CMake wrote down in a build tree."""
    rows = json.loads((tree / "tests" / "programs.json").read_text())
    return [Program(row["name"], row["folder"], tuple(row["command"]), row["of_tests"]) for row in rows]


def tests_of(program: Program) -> list[str]:
    """Asks a program for the names of its tests.

    Raises: RuntimeError: it cannot be started, or lists nothing.
    """
    if not program.of_tests:
        return []
    asked = subprocess.run(
        [*program.command, "--gtest_list_tests"], capture_output=True, text=True, timeout=300, check=False
    )
    names, suite = [], ""
    for line in asked.stdout.splitlines():
        word = line.split("#")[0].rstrip()
        if word.startswith("  "):
            names.append(suite + word.strip())
        elif word.endswith("."):
            suite = word
    if asked.returncode != 0 or not names:
        raise RuntimeError(
            f"{program.command[0]} lists no tests: {asked.stderr.strip() or asked.stdout[-500:]}"
        )
    return names


def suites_in(source: Path) -> set[str]:
    """Returns the names of the suites whose tests stand in a file."""
    return set(
        re.findall(r"^(?:TYPED_)?TEST(?:_F|_P)?\((\w+),", source.read_text(encoding="utf-8"), re.MULTILINE)
    )


def parts_of(program: Program, tests: Sequence[str], seconds: dict[str, float]) -> list[Part]:
    """Cuts tests into parts. seconds: what a test, as PROGRAM.NAME, took last time."""
    if not program.of_tests:
        return [Part(program, ())]

    def expected(test: str) -> float:
        return seconds.get(f"{program.name}.{test}", UNKNOWN_SECONDS)

    parts: list[Part] = []
    part: list[str] = []
    for test in sorted(tests, key=expected, reverse=True):
        if part and (len(part) == PART_TESTS or sum(map(expected, [*part, test])) > PART_SECONDS):
            parts.append(Part(program, tuple(part)))
            part = []
        part.append(test)
    return [*parts, Part(program, tuple(part))] if part else parts


def run_part(part: Part, longest_seconds: float) -> dict[str, Result]:
    """Runs a part to its end; what crashes, or takes longer, has failed. Names are PROGRAM.NAME."""
    if not part.tests:
        return {part.program.name: _run_command(part.program, longest_seconds)}
    results: dict[str, Result] = {}
    left = list(part.tests)
    while left:
        progress, end = _run_tests(part.program, left, longest_seconds)
        results |= progress.results
        if progress.running is not None:
            took = time.monotonic() - progress.began
            results[progress.running] = Result("failed", took, "".join([*progress.lines, f"{end}\n"]))
        missing = [test for test in left if test not in results]
        if len(missing) == len(left):  # it has not even begun
            output = "".join([*progress.lines, f"{end}\n"])
            results |= {test: Result("failed", 0, output) for test in missing}
            missing = []
        left = missing
    return {f"{part.program.name}.{test}": result for test, result in results.items()}


def _run_tests(program: Program, tests: Sequence[str], longest_seconds: float) -> tuple[_Progress, str]:
    """Returns how far a program came with tests, and how it ended."""
    words = ["--gtest_color=no", f"--gtest_filter={':'.join(tests)}"]
    progress = _Progress()
    with children.child(
        [*program.command, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        rest = b""
        while True:
            left = progress.began + longest_seconds - time.monotonic()
            if not select.select([process.stdout], [], [], max(left, 0))[0]:
                children.kill(process)
                return progress, f"killed: nothing had ended for {longest_seconds:.0f} s"
            read = process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
            if not read:
                break
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                progress.take(line.decode(errors="replace") + "\n")
        status = process.wait()
    return progress, f"the process ended with {_written(status)}"


def _run_command(program: Program, longest_seconds: float) -> Result:
    began = time.monotonic()
    with children.child(
        program.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            output, _ = process.communicate(timeout=longest_seconds)
        except subprocess.TimeoutExpired:
            children.kill(process)
            output, _ = process.communicate()
            output += f"\nkilled after {longest_seconds:.0f} s\n".encode()
    state: State = "passed" if process.returncode == 0 else "failed"
    return Result(state, time.monotonic() - began, output.decode(errors="replace"))


def _written(status: int) -> str:
    return f"signal {-status} ({signal.Signals(-status).name})" if status < 0 else f"status {status}"


def run(parts: Sequence[Part], jobs: int, longest_seconds: float) -> dict[str, Result]:
    """Runs parts, so many at a time, in their order."""
    results: dict[str, Result] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for ended in pool.map(lambda part: run_part(part, longest_seconds), parts):
            results |= ended
    return results
