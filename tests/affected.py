"""Which tests a change concerns: `make test SINCE=COMMIT`, and whether the experiments' own tests run.

A Python test concerns what it and its helpers import, the scripts whose names stand in them ("sums_worker.py"), and
files that it is named for. A C++ library concerns its own tests and those of the libraries above it in the README's
picture. This is for a quick look while one works; all tests run before a change lands.
"""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ABOVE = {
    "compress": ("compress", "kvstore"),
    "fusion": ("fusion", "kvstore"),
    "transport": ("transport", "kvstore"),
    "kvstore": ("kvstore",),
}
"""By library, whose C++ tests a change of it concerns."""
_FOLDERS = ("python", "tests", "experiments")
_OURS = ("tests", "experiments")
_EVERYWHERE = {"__init__", "gradwire", "torch"}
"""Names of files and folders that tests are not named for."""


def changed_since(commit: str, root: Path = ROOT) -> set[Path]:
    """Returns the files that differ from a commit, new ones included, relative to the root.

    Raises: ValueError: there is no such commit.
    """
    lists = []
    for words in (
        ["diff", "--name-only", "-z", commit, "--"],
        ["ls-files", "--others", "--exclude-standard", "-z"],
    ):
        asked = subprocess.run(
            ["git", "-c", "safe.directory=*", *words], cwd=root, capture_output=True, text=True, check=False
        )
        if asked.returncode != 0:
            raise ValueError(f"{commit!r} is not a commit of this repository: {asked.stderr.strip()}")
        lists.append(asked.stdout)
    return {Path(name) for name in "".join(lists).split("\0") if name}


def base_commit(root: Path = ROOT) -> str | None:
    """Returns where this work left what is published: the merge base with the remote's branch.

    None: that is not known, or nothing has changed since, as in a fresh clone.
    """

    def git(*words: str) -> str | None:
        asked = subprocess.run(
            ["git", "-c", "safe.directory=*", *words], cwd=root, capture_output=True, text=True, check=False
        )
        return asked.stdout.strip() if asked.returncode == 0 else None

    base = git("merge-base", "HEAD", "refs/remotes/origin/HEAD")
    return base if base is not None and changed_since(base, root) else None


def cpp_folders(changed: Iterable[Path]) -> list[str]:
    """Returns the libraries whose C++ tests a change concerns."""
    folders: set[str] = set()
    for path in changed:
        parts = path.parts
        if parts[0] in ABOVE:
            folders.update(ABOVE[parts[0]])
        elif parts[0] == "tests" and len(parts) > 1 and path.suffix in {".h", ".cpp", ".txt"}:
            folders.update([parts[1]] if parts[1] in ABOVE else ABOVE)
        elif path.name in {"CMakeLists.txt", "CMakePresets.json"}:
            folders.update(ABOVE)
    return [folder for folder in ABOVE if folder in folders]


class PythonTests:
    """The Python tests of a tree, and what each uses: modules of the package that it or its helpers import, scripts."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        found = [path.relative_to(root) for folder in _FOLDERS for path in (root / folder).rglob("*.py")]
        self._files = {path for path in found if not any(part.startswith(".") for part in path.parts)}
        self._by_name: dict[str, set[Path]] = {}
        for path in self._files:
            if path.parts[0] in _OURS:
                self._by_name.setdefault(path.name, set()).add(path)

    def tests(self) -> list[Path]:
        return sorted(path for path in self._files if path.match("tests/**/*_test.py"))

    def affected(self, changed: Iterable[Path]) -> list[Path]:
        """Returns the test files that use a changed file, or that are named for it."""
        changed = set(changed)
        package = [path for path in changed if path.parts[0] == "python" and path.suffix == ".py"]
        names = {name for path in package for name in (path.stem, path.parent.name)} - _EVERYWHERE
        folders = {path.parts[:2] for path in changed if path.parts[0] == "experiments"}

        def concerns(test: Path) -> bool:
            used = self._used_by(test)
            is_named_for_it = any(name in test.stem for name in names)
            return (
                is_named_for_it or not used.isdisjoint(changed) or any(p.parts[:2] in folders for p in used)
            )

        return [test for test in self.tests() if concerns(test)]

    def _used_by(self, test: Path) -> set[Path]:
        """Follows tests and scripts, not the package: in there everything uses everything in the end."""
        seen, pending = {test}, [test]
        while pending:
            for path in self._uses(pending.pop()) - seen:
                seen.add(path)
                if path.parts[0] in _OURS:
                    pending.append(path)
        return seen

    @functools.cache  # noqa: B019 (one of these lives as long as the process)
    def _uses(self, path: Path) -> frozenset[Path]:
        """Returns the files that one imports, or whose names stand in it."""
        used: set[Path] = set()
        for node in ast.walk(ast.parse((self._root / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    used |= self._module(alias.name, path)
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                for alias in node.names:
                    used |= self._module(f"{node.module}.{alias.name}", path) or self._module(
                        node.module, path
                    )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                used |= self._named(node.value)
        return frozenset(used)

    def _module(self, name: str, user: Path) -> set[Path]:
        """Returns the file of a module, looked for wherever ours are imported from."""
        place = Path(*name.split("."))
        bases = (Path("python"), Path("tests"), Path("experiments"), user.parent)
        return {
            f for b in bases for f in ((b / place).with_suffix(".py"), b / place / "__init__.py")
        } & self._files

    def _named(self, text: str) -> set[Path]:
        """Returns the scripts that a text names: "sums_worker.py", or all of an experiment, "char_lm"."""
        if text.endswith(".py"):
            found = self._by_name.get(text.rpartition("/")[2], set())
            return found if len(found) == 1 else set()  # "run.py" says nothing
        if not text.isidentifier():
            return set()
        return {path for path in self._files if path.parts[:2] == ("experiments", text)}


def concerns_experiments(changed: Iterable[Path]) -> bool:
    """Tells whether a change may concern what experiments do: it is in none of the other tests, and in no text."""
    folders = {
        path.parts[:2] if path.parts[0] == "tests" else path.parts[:1]
        for path in changed
        if path.suffix != ".md"
    }
    own = {("tests", "experiments"), ("experiments",), ("python",), *((library,) for library in ABOVE)}
    return not folders.isdisjoint(own)
