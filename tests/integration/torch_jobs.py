"""Jobs under torchrun, and programs of which one job runs all cases: importing torch takes longer than any of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

import pytest
from gradwire.launch.supervisor import run_job
from integration.processes import HERE, clean_environment
from packaging.version import Version


def has_torch(release: str) -> bool:
    """Whether the PyTorch that is installed is of this release, such as "2.9", or of a later one."""
    return Version(version("torch")) >= Version(release)


needs_sharding = pytest.mark.skipif(
    not has_torch("2.9"), reason="FSDP2 takes the collectives of others since PyTorch 2.9"
)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def torchrun(program: str, *arguments: str, workers: int = 2) -> list[str]:
    """The command of a program beside this file, as so many workers of torchrun."""
    return [*TORCHRUN, "--nproc-per-node", str(workers), str(HERE / program), *arguments]


def case_names(program: Path) -> list[str]:
    """What a program has marked with torch_programs.case, or with case_from() of a release that is there, without
    importing torch.
    """
    functions = [node for node in ast.parse(program.read_text()).body if isinstance(node, ast.FunctionDef)]
    names = [f.name for f in functions if any(map(_is_case, f.decorator_list))]
    assert names, f"{program} has no cases"
    return names


def _is_case(decorator: ast.expr) -> bool:
    match decorator:
        case ast.Name("case"):
            return True
        case ast.Call(ast.Name("case_from"), [ast.Constant(release)]):
            return has_torch(str(release))
    return False


def run_cases_by_torchrun(
    program: Path, folder: Path, variables: Mapping[str, str] = MappingProxyType({}), workers: int = 2
) -> subprocess.CompletedProcess[str]:
    """Runs a program of cases as ranks, which end with torch_programs.run_cases_in_a_group().

    Args:
        folder: the home of what they write.
        variables: of the environment.
        workers: how many ranks.
    """
    return subprocess.run(
        torchrun(program.name, workers=workers),
        capture_output=True,
        text=True,
        timeout=300,
        env=clean_environment(folder, dict(variables)),
    )


def run_ranks_apart(
    program: Path, folder: Path, word: str, workers: int, variables: Mapping[str, str] = MappingProxyType({})
) -> list[tuple[int, str]]:
    """Runs the ranks of a program as processes that no launcher ends when one of them dies: WORD FILE RANK RANKS.

    Args:
        folder: the home of what they write, and of the file by which they meet.
        word: what they are to do.
        workers: how many ranks.
        variables: of the environment.

    Returns: exit codes and what was written to stderr, by rank.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), word, str(folder / "store"), str(rank), str(workers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(folder, dict(variables)),
        )
        for rank in range(workers)
    ]
    try:
        texts = [process.communicate(timeout=240)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, text) for process, text in zip(processes, texts, strict=True)]


class CaseJob:
    """A program of cases as a job under `gradwire run`, which has ended.

    Attributes:
        workers: how many ranks there were.
        passed: by case, how many ranks said "CASE passed".
        exit_code: of the job.
        text: all that the ranks said.
    """

    def __init__(self, program: Path, *arguments: str, workers: int, servers: int = 0) -> None:
        lines: list[str] = []
        self.workers = workers
        self.passed: Counter[str] = Counter()

        def take(line: object) -> None:
            text = line.text  # type: ignore[attr-defined]
            lines.append(f"{line.role} {line.rank}: {text}")  # type: ignore[attr-defined]
            if text.endswith(" passed"):
                self.passed[text.removesuffix(" passed")] += 1

        result = run_job(
            [sys.executable, str(program), *arguments],
            workers=workers,
            servers=servers,
            output=take,
            report=lines.append,
            timeout=300,
        )
        self.exit_code = result.exit_code
        self.text = "\n".join(lines)
