"""Libraries never print, end the process or read the environment: settings come in from python/."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from structure.repository import LIBRARIES, code_of, cpp_files, files, line_of, read

SERVER_PROGRAM = Path(
    "kvstore/server/server_main.cpp"
)  # a program: it may print and exit, but takes flags; one of them names the variable that holds the job's key
ENVIRONMENT = re.compile(r"\b(?:secure_)?getenv\s*\(|\b(?:set|put|unset)env\s*\(|\benviron\b")
PRINTING = re.compile(
    r"\bstd::(?:cout|cerr|clog|terminate|quick_exit)\b|\b(?:v?f?printf|f?puts|putchar|perror)\s*\(|\bfmt::print\b"
    r"|(?:\bstd::|(?<![\w:])::|^[ \t]*)(?:abort|_?exit)\s*\(",
    re.MULTILINE,
)
FRAMEWORKS = {"torch", "mxnet", "tensorflow", "jax"}
FOLDERS_OF_FRAMEWORKS = FRAMEWORKS | {"integrations"}  # each of whose modules is for scripts of one framework


def found(pattern: re.Pattern[str], where: str, text: str) -> list[str]:
    code = code_of(text)
    return [f"{where}:{line_of(code, m.start())}: {m.group().strip()}" for m in pattern.finditer(code)]


def test_no_environment_variable_is_read_in_cpp() -> None:
    sources = cpp_files(*LIBRARIES, "python/src")
    reads = {str(path): found(ENVIRONMENT, str(path), read(path)) for path in sources}
    assert len(reads.pop(str(SERVER_PROGRAM))) == 1
    assert not [bad for bads in reads.values() for bad in bads]


def test_libraries_neither_print_nor_end_the_process() -> None:
    sources = [path for path in cpp_files(*LIBRARIES, "python/src") if path != SERVER_PROGRAM]
    assert not [bad for path in sources for bad in found(PRINTING, str(path), read(path))]


def frameworks_imported(where: str, text: str) -> list[str]:
    """Returns the frameworks that importing a module imports; inside a function, they may be."""
    imported = set()
    pending: list[ast.AST] = [ast.parse(text)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            imported.add(node.module.split(".")[0])
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            pending += ast.iter_child_nodes(node)
    return [f"{where} imports {name}" for name in sorted(imported & FRAMEWORKS)]


def test_a_framework_is_imported_only_in_its_own_folder() -> None:
    package = Path("python/gradwire")
    modules = [p for p in files() if p.suffix == ".py" and p.is_relative_to(package)]
    assert modules
    outside = [
        p for p in modules if FOLDERS_OF_FRAMEWORKS.isdisjoint(p.relative_to(package).parts)
    ]  # horovod/torch, too
    assert not [bad for path in outside for bad in frameworks_imported(str(path), read(path))]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (ENVIRONMENT, 'auto x = std::getenv("A");'),
        (PRINTING, "std::cout << 1;"),
        (PRINTING, "  printf(format);"),
        (PRINTING, "if (bad) std::abort();"),
        (PRINTING, "  exit(1);"),
        (PRINTING, "if (bad) ::_exit(1);"),
    ],
)
def test_a_planted_offence_is_found(pattern: re.Pattern[str], text: str) -> None:
    assert found(pattern, "x.cpp", text)


@pytest.mark.parametrize("text", ["// printf(x)", '"std::cout"', "snprintf(b, n, f);", "job.abort(reason);"])
def test_what_only_looks_like_an_offence_is_let_through(text: str) -> None:
    assert not found(PRINTING, "x.cpp", text)


def test_a_planted_framework_import_is_found() -> None:
    assert frameworks_imported("x.py", "try:\n    from torch import nn\nfinally:\n    pass") == [
        "x.py imports torch"
    ]
    assert not frameworks_imported("x.py", "from .torch import reducer")
    assert not frameworks_imported("x.py", "def f():\n    import torch")


def mentions(pattern: str) -> set[str]:
    """Modules of the package in whose code something is."""
    package = Path("python/gradwire")
    modules = [p for p in files() if p.suffix == ".py" and p.is_relative_to(package)]
    return {p.relative_to(package).as_posix() for p in modules if re.search(pattern, read(p), re.MULTILINE)}


def test_only_what_a_script_sends_is_unpickled() -> None:
    """security.md names these three, and no others: unpickling runs whatever the sender likes."""
    assert mentions(r"\b(?:pickle|cloudpickle)\.loads?\(") == {"horovod/objects.py"}
    calls = r"(?<!def )\b(?:broadcast_object|allgather_object)\("
    assert mentions(calls) == {"byteps/torch/states.py", "horovod/torch/elastic/state.py"}
    for name in ("broadcast_object", "allgather_object", "TorchState"):
        assert name in read(Path("python/docs/explanation/security.md"))
