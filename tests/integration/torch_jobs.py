"""Jobs under torchrun, and programs of which one job runs all cases: importing torch takes longer than any of them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from integration.processes import HERE

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def torchrun(program: str, *arguments: str, workers: int = 2) -> list[str]:
    """The command of a program beside this file, as so many workers of torchrun."""
    return [*TORCHRUN, "--nproc-per-node", str(workers), str(HERE / program), *arguments]


def case_names(program: Path) -> list[str]:
    """What a program has marked with torch_programs.case, without importing torch."""
    functions = [node for node in ast.parse(program.read_text()).body if isinstance(node, ast.FunctionDef)]
    names = [f.name for f in functions if any(ast.unparse(d) == "case" for d in f.decorator_list)]
    assert names, f"{program} has no cases"
    return names
