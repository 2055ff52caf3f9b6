"""What mpirun --tag-output writes, cut into the lines of its ranks.

mpirun tags what it reads, not lines: a line that a rank wrote in two pieces has two tags, and the pieces of another
rank may lie between them.
"""

from __future__ import annotations

import re

from gradwire.launch.child import Line, LineSplitter, Stream

_TAG = re.compile(rb"\[\d+,(\d+)\]<(stdout|stderr)>:")
_HALF_A_TAG = re.compile(rb"\[(?:\d+(?:,(?:\d+(?:\](?:<[a-z]*>?)?)?)?)?)?$")
_Writer = tuple[int | None, Stream]


class TaggedSplitter:
    """Cuts one stream of an mpirun into lines. rank None: mpirun's own words."""

    def __init__(self, role: str, rank: int | None, stream: Stream) -> None:
        self._role = role
        self._mpirun: _Writer = (rank, stream)
        self._writer = self._mpirun
        self._splitters: dict[_Writer, LineSplitter] = {}
        self._held = b""  # what may be the beginning of a tag

    def feed(self, data: bytes, now: float) -> list[Line]:
        """Takes what was read (b"" at the end of the stream) and returns the lines it completes."""
        text, self._held = self._held + data, b""
        if data and (half := _HALF_A_TAG.search(text)):
            text, self._held = text[: half.start()], text[half.start() :]
        lines: list[Line] = []
        at = 0
        for tag in _TAG.finditer(text):
            lines += self._take(text[at : tag.start()], now)
            self._writer = (int(tag[1]), "stdout" if tag[2] == b"stdout" else "stderr")
            at = tag.end()
        lines += self._take(text[at:], now)
        if not data:
            for writer in self._splitters:
                lines += self._feed(writer, b"", now)
        return lines

    @property
    def unfinished(self) -> Line | None:
        return None  # more of it may belong to another rank

    def _take(self, text: bytes, now: float) -> list[Line]:
        """Takes what lies between two tags: the rank's to the end of a line, and mpirun's own beyond it."""
        if self._writer != self._mpirun and b"\n" in text:
            own, end, rest = text.partition(b"\n")
            lines = self._feed(self._writer, own + end, now)
            self._writer = self._mpirun
            return lines + self._take(rest, now)
        return self._feed(self._writer, text, now) if text else []

    def _feed(self, writer: _Writer, text: bytes, now: float) -> list[Line]:
        splitter = self._splitters.setdefault(writer, LineSplitter())
        rank, stream = writer
        return [Line(self._role, rank, stream, words) for words in splitter.feed(text, now)]
