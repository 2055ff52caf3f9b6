"""The code blocks of a page of the documentation, and how a test runs them.

Blocks of Python run, and so do blocks of shell. The Python of a page is one script, which its blocks continue:
`train.py`, or what a first line such as `# serve.py` names, where a new script begins. A block of shell runs in the
folder of the scripts. A script that no block of shell starts is started by `gradwire run -n 2 python`.

What stands behind the language says otherwise:

    ```sh notest: needs two machines      is not run
    ```sh soak                            is run by `make soak` only, since it takes long

A comment that begins with "before" and holds Python is put in front of the page's script, and is not shown:

    <!-- before
    model = torch.nn.Linear(4, 2)
    -->
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN = {"python", "sh"}
_BLOCK = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[\w+-]*)(?P<words>[^\n`]*)\n(?P<code>.*?)^(?P=indent)(?P=fence) *$"
    r"|^<!-- before\n(?P<before>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
_NAME = re.compile(r"# ([\w/]+\.py)\b")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: "" where none is given; "before" is Python that is not shown.
        words: what stands behind the language.
    """

    language: str
    words: str
    code: str
    line: int

    @property
    def is_run(self) -> bool:
        return self.language in RUN and not self.words.startswith("notest")

    @property
    def is_long(self) -> bool:
        return self.words.split()[:1] == ["soak"]

    @property
    def reason(self) -> str:
        """Why it is not run."""
        return self.words.removeprefix("notest").lstrip(": ")


def blocks(text: str) -> Iterator[Block]:
    """Yields the blocks of a page in order."""
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["before"] is not None:
            yield Block("before", "", match["before"], line)
            continue
        indent = match["indent"]
        code = "".join(each.removeprefix(indent) for each in match["code"].splitlines(keepends=True))
        yield Block(match["language"], match["words"].strip(), code, line)


@dataclass
class PageRun:
    """Runs one page.

    Attributes:
        page: for error messages.
        folder: in which scripts stand and commands run.
        long: run the long blocks too.
    """

    page: str
    folder: Path
    long: bool = False
    ran: int = 0
    _script: str = "train.py"
    _before: str = ""
    _pending: dict[str, int] = field(default_factory=dict)

    def run(self, text: str) -> int:
        """Returns how many blocks ran.

        Raises:
            AssertionError: one failed; has what it wrote.
        """
        for block in blocks(text):
            if block.language == "before":
                self._before = block.code
            elif not block.is_run or (block.is_long and not self.long):
                continue
            elif block.language == "python":
                self._add(block)
            else:
                self._start(block.code, block.line)
                for name in [name for name in self._pending if name in block.code]:
                    self.ran += self._pending.pop(name)
                self.ran += 1
        for name, count in self._pending.items():
            self._start(f"gradwire run -n 2 python {name}\n", 0)
            self.ran += count
        self._pending.clear()
        return self.ran

    def _add(self, block: Block) -> None:
        named = _NAME.match(block.code)
        if named:
            self._script = named[1]
        file = self.folder / self._script
        file.parent.mkdir(parents=True, exist_ok=True)
        before = "" if named or not file.exists() else file.read_text(encoding="utf-8") + "\n"
        file.write_text((before or self._before) + block.code, encoding="utf-8")
        self._pending[self._script] = self._pending.get(self._script, 0) + 1

    def _start(self, command: str, line: int) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=900 if self.long else 300,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        )
        where = f"{self.page}:{line}" if line else f"{self.page}, its script as a whole"
        assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{command}\n{done.stdout}"


def pages() -> list[Path]:
    """Returns the pages whose blocks are run: of the documentation, and what a newcomer reads first."""
    found = sorted((ROOT / "python" / "docs").rglob("*.md"))
    return [ROOT / "README.md", *found]
