"""What the structure tests look at: this repository's files, and C++ without its comments and strings."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARIES = ("compress", "fusion", "transport", "kvstore")
CPP_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}

_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def files() -> list[Path]:
    """Returns all files that are committed or would be (not ignored), relative to the root."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = [Path(name) for name in listing.split("\0") if name]
    assert found, "git lists no files"
    return sorted(path for path in set(found) if (ROOT / path).is_file())


def cpp_files(*folders: str) -> list[Path]:
    return [
        p
        for p in files()
        if p.suffix in CPP_SUFFIXES and p.as_posix().startswith(tuple(f"{f}/" for f in folders))
    ]


def read(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def code_of(text: str) -> str:
    """Blanks comments and strings, keeping line numbers."""
    return _COMMENT_OR_STRING.sub(lambda match: "\n" * match.group().count("\n"), text)


def line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
