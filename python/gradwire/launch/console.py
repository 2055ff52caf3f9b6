"""What a person sees of a running job: each line behind the name of the process that wrote it."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TextIO

from gradwire.launch.child import Line

_COLOURS = (36, 33, 35, 32, 34, 31)  # cyan, yellow, magenta, green, blue, red: one per rank, in turn
_DIM = 2


class Prefixer:
    """Writes lines as "[worker 1] text": stdout to one stream, stderr to another. Colour on a terminal only.

    Lines go out whole and at once, so lines of several processes never mix. The beginning of a line that waits for its
    end (a prompt) is shown too; where another line comes between, the whole line is shown again.
    """

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self._streams = {"stdout": stdout, "stderr": stderr}
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        self._begun: Line | None = None  # shown last, without a line end
        self._coloured = {name: stream.isatty() and not plain for name, stream in self._streams.items()}

    def __call__(self, line: Line) -> None:
        stream = self._streams[line.stream]
        stream.write(f"{self._head(line)}\n")
        stream.flush()

    def begin(self, line: Line) -> None:
        """Shows what has come of a line."""
        stream = self._streams[line.stream]
        stream.write(self._head(line))
        stream.flush()
        self._begun = line

    def _head(self, line: Line) -> str:
        """The line, but for what is shown of it already."""
        begun, self._begun = self._begun, None
        if begun is None:
            return f"{self._prefix(line)} {line.text}"
        if replace(begun, text="") == replace(line, text="") and line.text.startswith(begun.text):
            return line.text[len(begun.text) :]
        if begun.stream == line.stream:
            return f"\n{self._prefix(line)} {line.text}"
        other = self._streams[begun.stream]
        other.write("\n")
        other.flush()
        return f"{self._prefix(line)} {line.text}"

    def _prefix(self, line: Line) -> str:
        label = f"[{line.role}]" if line.rank is None else f"[{line.role} {line.rank}]"
        if not self._coloured[line.stream]:
            return label
        colour = _COLOURS[(line.rank or 0) % len(_COLOURS)] if line.role == "worker" else _DIM
        return f"\x1b[{colour}m{label}\x1b[0m"


def say(text: str) -> None:
    """Writes one line of gradwire's own to stderr."""
    sys.stderr.write(f"gradwire: {text}\n")
    sys.stderr.flush()
