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
    end (a prompt) is shown too; where another line comes between, the whole line is shown again. A stream that cannot
    be written any more is given up, and the job goes on.
    """

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self._streams = {"stdout": stdout, "stderr": stderr}
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        self._begun: Line | None = None  # shown last, without a line end
        self._coloured = {name: stream.isatty() and not plain for name, stream in self._streams.items()}

    def __call__(self, line: Line) -> None:
        _write(self._streams[line.stream], f"{self._head(line)}\n")

    def begin(self, line: Line) -> None:
        """Shows what has come of a line."""
        _write(self._streams[line.stream], self._head(line))
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
        _write(self._streams[begun.stream], "\n")
        return f"{self._prefix(line)} {line.text}"

    def _prefix(self, line: Line) -> str:
        label = f"[{line.role}]" if line.rank is None else f"[{line.role} {line.rank}]"
        if not self._coloured[line.stream]:
            return label
        colour = _COLOURS[(line.rank or 0) % len(_COLOURS)] if line.role == "worker" else _DIM
        return f"\x1b[{colour}m{label}\x1b[0m"


def say(text: str) -> None:
    """Writes one line of gradwire's own to stderr, if that can be written."""
    _write(sys.stderr, f"gradwire: {text}\n")


def _write(stream: TextIO, text: str) -> None:
    """Writes at once. If that fails (a closed terminal, a killed `| tee`, a full disk), gives up the stream: a job must
    not end because nobody sees it, least of all before its workers have saved."""
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        _give_up(stream)
        if stream is not sys.stderr:
            say(
                f"stdout cannot be written ({error.strerror}): the job goes on, and further lines are not shown"
            )


def _give_up(stream: TextIO) -> None:
    """Points a stream at /dev/null, whoever writes to it. Else Python would try to write what it still holds at exit,
    fail, and replace the exit code by 120."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
