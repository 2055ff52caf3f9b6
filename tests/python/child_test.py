"""Lines out of a stream of bytes, exit codes in words, and what a person sees."""

from __future__ import annotations

import io

import pytest
from gradwire.launch.child import Line, LineSplitter, describe_exit, shell_code
from gradwire.launch.console import Prefixer


def test_lines_are_cut_wherever_the_reads_fall() -> None:
    data = "one\ntwo\r\n\nvier: ü\n".encode()
    for cut in range(len(data) + 1):
        splitter = LineSplitter()
        lines = splitter.feed(data[:cut], 0.0) if cut else []
        lines += splitter.feed(data[cut:], 0.0) if cut < len(data) else []
        assert lines + splitter.feed(b"", 0.0) == ["one", "two", "", "vier: ü"], cut


def test_last_line_needs_no_end() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"a\nb", 0.0) == ["a"]
    assert splitter.feed(b"", 0.0) == ["b"]
    assert splitter.feed(b"", 0.0) == []


def test_a_progress_bar_is_shown_once_a_second_and_at_its_end() -> None:
    splitter = LineSplitter()
    shown: list[str] = []
    for tick in range(101):  # 10 s at 10 Hz, drawn as tqdm does
        shown += splitter.feed(f"\r{tick}%".encode(), tick / 10)
    shown += splitter.feed(b"\ndone\n", 10.1)
    assert shown[-2:] == ["100%", "done"]
    assert 10 <= len(shown) <= 13
    assert shown == sorted(set(shown), key=shown.index)


def test_a_line_without_end_does_not_grow_for_ever() -> None:
    splitter = LineSplitter()
    lines = [line for _ in range(40) for line in splitter.feed(b"x" * 65_536, 0.0)]
    assert sum(map(len, lines)) + len("".join(splitter.feed(b"", 0.0))) == 40 * 65_536
    assert max(map(len, lines)) <= 3 * 65_536


def test_bytes_that_are_no_text_do_not_stop_the_output() -> None:
    assert LineSplitter().feed(b"a\xffb\n", 0.0) == ["a\ufffdb"]


@pytest.mark.parametrize(
    ("code", "words", "shell"),
    [
        (0, "ended with exit code 0", 0),
        (3, "ended with exit code 3", 3),
        (-9, "was killed by SIGKILL", 137),
        (-63, "was killed by signal 63", 191),
    ],
)
def test_exit_codes(code: int, words: str, shell: int) -> None:
    assert (describe_exit(code), shell_code(code)) == (words, shell)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out, err = Terminal(), io.StringIO()
    show = Prefixer(out, err)
    show(Line("worker", 1, "stdout", "a"))
    show(Line("scheduler", None, "stderr", "b"))
    assert out.getvalue() == "\x1b[33m[worker 1]\x1b[0m a\n"
    assert err.getvalue() == "[scheduler] b\n"
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    Prefixer(plain, err)(Line("worker", 1, "stdout", "a"))
    assert plain.getvalue() == "[worker 1] a\n"
