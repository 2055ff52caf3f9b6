"""The rooms inside the libraries, and which may include which. `make structure` prints what there is of each.

A room is a folder inside a library's folder, or that folder's own files. A room is named behind all that it may
include, so no circle can be.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from structure.repository import CPP_SUFFIXES, code_of, cpp_files, files, line_of, read

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

# What a codec is, and the words of its errors: compress/'s own files that its rooms stand on. Its other files, the
# table of codecs and what wraps a codec, stand on the rooms.
CONTRACT = "compress: the contract"
_CONTRACT_FILES = ("compress/codec.h", "compress/suggestions.h", "compress/suggestions.cpp")
_OF_A_FAMILY = {CONTRACT, "compress/payload", "compress/dense"}

ROOMS: dict[str, set[str]] = {
    CONTRACT: set(),
    "compress/payload": {CONTRACT},
    "compress/dense": {CONTRACT, "compress/payload"},
    "compress/two_bit": _OF_A_FAMILY,
    "compress/one_bit": _OF_A_FAMILY | {"compress/two_bit"},
    "compress/stochastic": _OF_A_FAMILY | {"compress/two_bit"},
    "compress/block": {"compress/payload", "compress/dense", "compress/stochastic"},
    "compress/sparse": _OF_A_FAMILY | {"compress/stochastic"},
    "compress": _OF_A_FAMILY
    | {f"compress/{name}" for name in ("two_bit", "one_bit", "stochastic", "block", "sparse")},
    "compress/device": _OF_A_FAMILY
    | {f"compress/{name}" for name in ("two_bit", "one_bit", "stochastic", "block", "sparse")},
    "compress/cuda": {CONTRACT, "compress", "compress/device"},
    "fusion": set(),
    "transport": set(),
    "transport/membership": {"transport"},
    "transport/decorators": {"transport"},
    "transport/inproc": {"transport", "transport/membership"},
    "transport/zmq": {"transport", "transport/membership", "transport/decorators", "transport/inproc"},
    "transport/mpi": {"transport", "transport/membership"},
    "transport/nccl": {"transport"},
    "kvstore/trace": set(),
    "kvstore/wire": set(),
    "kvstore": {"kvstore/trace", "kvstore/wire"},
    "kvstore/runtime": {"kvstore/trace", "kvstore/wire"},
    "kvstore/aggregate": {"kvstore", "kvstore/wire"},
    "kvstore/rows": {"kvstore", "kvstore/wire", "kvstore/runtime", "kvstore/aggregate"},
    "kvstore/collectives": {"kvstore", "kvstore/wire", "kvstore/runtime"},
    "kvstore/device": {"kvstore", "kvstore/wire"},
    "kvstore/client": {
        *("kvstore", "kvstore/wire", "kvstore/trace", "kvstore/runtime"),
        *("kvstore/rows", "kvstore/collectives", "kvstore/device"),
    },
    "kvstore/server": {
        *("kvstore", "kvstore/wire", "kvstore/trace", "kvstore/runtime"),
        *("kvstore/aggregate", "kvstore/rows", "kvstore/collectives"),
    },
    "kvstore/placement": {
        *("kvstore/wire", "kvstore/runtime", "kvstore/aggregate", "kvstore/client", "kvstore/server"),
    },
    "kvstore/checkpoint": {"kvstore/wire", "kvstore/aggregate", "kvstore/rows", "kvstore/client"},
    "kvstore/engine": {
        *("kvstore", "kvstore/wire", "kvstore/trace", "kvstore/runtime", "kvstore/aggregate", "kvstore/rows"),
        *(
            "kvstore/collectives",
            "kvstore/client",
            "kvstore/server",
            "kvstore/placement",
            "kvstore/checkpoint",
        ),
    },
}
MOST_FILES = 35  # of a room

# Likewise of the Python package, by what a module imports before its own lines are run: a package, or a module that
# stands in none. kv, sparse and collectives are the doors of stores/, and belong to it.
DOORS = {"kv": "stores", "sparse": "stores", "collectives": "stores"}
PACKAGES: dict[str, set[str]] = {
    "compress": set(),
    "samplers": set(),
    "settings": set(),
    "torch_backend": set(),
    "metrics": {"settings"},
    "gathered_sum": {"compress"},
    "terminal": {"settings"},
    "report": {"terminal"},
    "netlab": {"settings", "terminal"},
    "codec_listing": {"terminal"},
    "timeline": {"report", "settings", "terminal"},
    "stores": {"compress", "settings", "timeline"},
    "power_sgd": {"compress"},
    "elastic": {"compress", "stores"},
    "launch": {"codec_listing", "compress", "settings", "stores", "terminal", "timeline"},
    "mxnet": {"settings", "stores"},
    "result": {"settings", "stores"},
    "ab": {"launch", "report", "result", "settings", "terminal"},
    "doctor": {"launch", "settings", "terminal"},
    "plan": {"codec_listing", "compress", "launch", "settings", "stores", "terminal"},
    "autotune": {"ab", "compress", "launch", "plan", "report", "settings", "terminal"},
    "bench": {"codec_listing", "compress", "launch", "plan", "report", "settings", "stores", "terminal"},
    "controller": {"compress", "plan", "report", "settings", "stores"},
    "cli": {"autotune", "codec_listing", "launch", "plan", "settings", "terminal"},
    "torch": {
        *("compress", "controller", "elastic", "gathered_sum", "plan", "samplers", "settings", "stores"),
        "torch_backend",
    },
    "horovod": {"compress", "mxnet", "settings", "stores", "torch"},
    "byteps": {"horovod", "mxnet", "torch"},
    "integrations": {"torch"},
}
PYTHON = Path("python/gradwire")


def room_of(file: str) -> str:
    return CONTRACT if file in _CONTRACT_FILES else str(Path(file).parent)


def library_of(room: str) -> str:
    return room.partition("/")[0].partition(":")[0]


@dataclass(frozen=True)
class Include:
    """One line that reaches into another room of the same library."""

    file: str
    line: int
    source: str  # room
    target: str
    is_allowed: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.source} may not include {self.target}"


def includes_of(file: str, text: str) -> Iterator[Include]:
    source = room_of(file)
    for match in INCLUDE.finditer(text):
        target = room_of(match[1])
        if library_of(target) == library_of(source) and target != source:
            yield Include(
                file, line_of(text, match.start()), source, target, target in ROOMS.get(source, set())
            )


def includes() -> list[Include]:
    libraries = sorted({library_of(room) for room in ROOMS})
    return [found for path in cpp_files(*libraries) for found in includes_of(str(path), read(path))]


def package_of(module: str) -> str:
    """Takes a module's full name. Returns "" for gradwire itself, and for what is compiled."""
    name = module.partition(".")[2].partition(".")[0]
    return "" if name == "_core" else DOORS.get(name, name)


def imports_of(file: Path, text: str, known: set[str]) -> Iterator[Include]:
    """Yields a module's imports of other packages that come before its own lines. known: all modules, by full name."""
    source = package_of(module_of(file))
    for node in ast.parse(text).body:
        names = []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            given = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in given]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            target = package_of(name)
            if name.split(".")[0] == "gradwire" and target and source and target != source:
                yield Include(str(file), node.lineno, source, target, target in PACKAGES.get(source, set()))


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(PYTHON.parent).with_suffix("").parts).removesuffix(".__init__")


def imports() -> list[Include]:
    paths = [path for path in files() if path.suffix == ".py" and path.is_relative_to(PYTHON)]
    known = {module_of(path) for path in paths}
    return [found for path in paths for found in imports_of(path, read(path), known)]


# Measures, by how the formatters write C++ and Python


def classes_of(text: str) -> dict[str, int]:
    """Counts the functions that each class of a header declares, by name."""
    counts = {}
    code = code_of(text)
    for match in re.finditer(r"^(?:class|struct) (\w+)[^;{]*\{$(.*?)^\};", code, re.MULTILINE | re.DOTALL):
        body = match[2]
        while (flat := re.sub(r"\{[^{}]*\}", ";", body)) != body:
            body = flat
        while (flat := re.sub(r"<[^<>;]*>", "", body)) != body:
            body = flat
        body = re.sub(r"[^;]* = delete;", ";", body)
        statements = (re.sub(r"\s+", " ", part).strip() for part in body.split(";"))
        counts[match[1]] = sum(bool(re.search(r"[\w=>\])]\(", part.split(" = ")[0])) for part in statements)
    return counts


def _first_statement(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
    return node.body[1 if ast.get_docstring(node) is not None and len(node.body) > 1 else 0]


def function_lines(path: Path) -> list[int]:
    """Returns how long each function is: of C++, those that stand outside of classes; of Python, without its parameters
    and its docstring."""
    text = read(path)
    if path.suffix == ".py":
        nodes = (
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        )
        return [(node.end_lineno or 0) - _first_statement(node).lineno + 1 for node in nodes]
    found = []
    begin: int | None = None
    for number, line in enumerate(code_of(text).splitlines()):
        if (
            begin is None
            and re.match(r"[A-Za-z~\[]", line)
            and not re.match(
                r"(namespace|class|struct|enum|union|using|extern|typedef|constexpr \w[^(]*=|inline constexpr)\b",
                line,
            )
        ):
            begin = number
        if begin is not None and line.endswith(";") and not line.startswith(("}", " ")):
            begin = None  # a declaration
        elif begin is not None and (line.startswith("}") or (line.endswith("}") and line[0] != " ")):
            if not line.startswith("};"):
                found.append(number - begin + 1)
            begin = None
    return found


def comment_share(paths: list[Path]) -> float:
    """Lines that are a comment, of those that are not empty."""
    lines = [line.strip() for path in paths for line in read(path).splitlines() if line.strip()]
    return sum(
        line.startswith(("//", "#", "/*", "*")) and not line.startswith("#include") for line in lines
    ) / len(lines)


def table() -> list[tuple[str, ...]]:
    """A row for each library and for the package, behind a row of titles."""
    reached = [*includes(), *imports()]
    rows = [
        (
            *("folder", "flat", "rooms", "most in one", "between rooms", "against the table"),
            *("largest class", "largest header", "function lines: median, p90, max", "comments in sources"),
        )
    ]
    for folder in ("compress", "fusion", "transport", "kvstore", "python/gradwire"):
        suffixes = CPP_SUFFIXES if folder != "python/gradwire" else {".py"}
        paths = [path for path in files() if path.suffix in suffixes and path.is_relative_to(folder)]
        per_room = Counter(path.parent for path in paths)
        headers = [path for path in paths if path.suffix == ".h"]
        classes = {
            f"{name} {count}": count for path in headers for name, count in classes_of(read(path)).items()
        }
        longest = max(((len(read(path).splitlines()), path.name) for path in headers), default=None)
        lengths = sorted(length for path in paths for length in function_lines(path))
        own = [found for found in reached if Path(found.file).is_relative_to(folder)]
        rows.append(
            (
                folder,
                str(per_room[Path(folder)]),
                str(sum(room != Path(folder) for room in per_room)),
                str(max(per_room.values())),
                str(len(own)),
                str(sum(not found.is_allowed for found in own)),
                max(classes, key=lambda name: classes[name], default="-"),
                f"{longest[1]} {longest[0]}" if longest else "-",
                f"{statistics.median(lengths):.0f}, {lengths[int(0.9 * len(lengths))]}, {lengths[-1]}",
                f"{100 * comment_share([path for path in paths if path.suffix != '.h']):.0f} %",
            )
        )
    return rows


def main() -> None:
    rows = table()
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    for found in [*includes(), *imports()]:
        if not found.is_allowed:
            print(found)


if __name__ == "__main__":
    sys.exit(main())
