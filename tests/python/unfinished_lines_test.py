"""UnfinishedLines by itself: which beginnings of lines are shown, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gradwire.launch.child import Line, OwnLines
from gradwire.launch.unfinished_lines import UnfinishedLines


class Writer:
    """In the place of a Child."""

    def __init__(self, rank: int) -> None:
        self.splitters = {stream: OwnLines("worker", rank, stream) for stream in ("stdout", "stderr")}  # type: ignore[arg-type]

    def write(self, text: str, stream: Any = "stdout") -> None:
        self.splitters[stream].feed(text.encode(), 0.0)


def make() -> tuple[UnfinishedLines, list[str]]:
    shown: list[str] = []
    return UnfinishedLines(lambda line: shown.append(line.text)), shown


def test_a_prompt_is_shown_once_when_it_has_waited() -> None:
    lines, shown = make()
    child: Any = Writer(0)
    child.write("(Pdb) ")
    lines.note_read(child, "stdout", 10.0)
    assert lines.next_due == 10.1
    lines.show_due(10.05)
    assert shown == []
    for _ in range(2):
        lines.show_due(10.1)
    assert shown == ["(Pdb) "]
    assert lines.next_due is None


def test_a_line_that_is_whole_a_moment_later_is_not_shown() -> None:
    lines, shown = make()
    child: Any = Writer(0)
    child.write("loss ")
    lines.note_read(child, "stdout", 10.0)
    child.write("0.5\n")
    lines.note_read(child, "stdout", 10.05)
    assert lines.next_due is None
    lines.show_due(11.0)
    assert shown == []


def test_what_is_added_to_begins_to_wait_anew() -> None:
    lines, shown = make()
    child: Any = Writer(0)
    for now, text in ((10.0, "a"), (10.08, "b")):
        child.write(text)
        lines.note_read(child, "stdout", now)
    lines.show_due(10.1)
    assert shown == []
    lines.show_due(10.2)
    assert shown == ["ab"]


def test_the_first_of_several_is_due_next_and_a_child_that_ended_is_forgotten() -> None:
    lines, shown = make()
    first: Any = Writer(0)
    second: Any = Writer(1)
    for now, child, stream in ((10.0, first, "stdout"), (10.02, first, "stderr"), (10.05, second, "stdout")):
        child.write(f"{stream}>", stream)
        lines.note_read(child, stream, now)
    assert lines.next_due == 10.1
    lines.forget(first)
    assert lines.next_due == 10.15
    lines.show_due(11.0)
    assert shown == ["stdout>"]


def test_nothing_waits_where_nobody_looks() -> None:
    lines = UnfinishedLines(None)
    unfinished = Line("worker", 0, "stdout", "(Pdb) ")
    child: Any = SimpleNamespace(splitters={"stdout": SimpleNamespace(unfinished=unfinished)})
    lines.note_read(child, "stdout", 10.0)
    assert lines.next_due is None
