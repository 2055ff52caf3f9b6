"""What mpirun writes, cut into the lines of its ranks: pieces, several ranks in one line, progress bars."""

from __future__ import annotations

import pytest
from gradwire.launch.child import Line, Stream
from gradwire.launch.mpi_output import TaggedSplitter


def lines(*reads: bytes) -> list[tuple[int | None, Stream, str]]:
    splitter = TaggedSplitter("worker", None, "stdout")
    found: list[Line] = []
    for read in (*reads, b""):
        found += splitter.feed(read, 0.0)
    return [(line.rank, line.stream, line.text) for line in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"[1,3]<stdout>:step 7\n", [(3, "stdout", "step 7")]),
        (b"[1,0]<stderr>:\n", [(0, "stderr", "")]),
        (b"[1,0]<stdout>:  indented\n", [(0, "stdout", "  indented")]),
        (b"mpirun noticed that ...\n", [(None, "stdout", "mpirun noticed that ...")]),
        (b"[1,0]<stdout>:a\nmpirun: b\n", [(0, "stdout", "a"), (None, "stdout", "mpirun: b")]),
        (b"[1,0]<stdout>:loss [1[1,0]<stdout>:, 2]\n", [(0, "stdout", "loss [1, 2]")]),
        (
            b"[1,0]<stdout>:one [1,1]<stdout>:two [1,0]<stdout>:and\n[1,1]<stdout>:half",
            [(0, "stdout", "one and"), (1, "stdout", "two half")],
        ),
    ],
)
def test_lines_are_those_of_the_ranks(text: bytes, expected: list[tuple[int | None, Stream, str]]) -> None:
    assert lines(text) == expected
    assert lines(*(text[at : at + 1] for at in range(len(text)))) == expected


def test_the_beginning_of_a_tag_that_never_comes_is_not_lost() -> None:
    assert lines(b"[1,0]<stdout>:see [1,0", b"]\n") == [(0, "stdout", "see [1,0]")]
    assert lines(b"[1,0]<stdout>:see [") == [(0, "stdout", "see [")]


def test_a_progress_bar_of_one_rank_does_not_hide_another() -> None:
    text = b"[1,0]<stdout>:\r10%[1,1]<stdout>:up\n[1,0]<stdout>:\r20%\n"
    assert lines(text) == [(1, "stdout", "up"), (0, "stdout", "20%")]
