"""Which error a process has ended with, as its lines on stderr say."""

from __future__ import annotations

import subprocess
import sys

import pytest
from gradwire.launch.child import Line, Stream
from gradwire.launch.tracebacks import Tracebacks

NESTED = """
def load():
    raise KeyError("labels")
try:
    load()
except KeyError as error:
    raise ValueError("no such\\nimage") from error
"""


def taken(*given: tuple[int, str]) -> Tracebacks:
    """What is known after (rank, text) of workers on stderr."""
    found = Tracebacks()
    for rank, text in given:
        for line in text.splitlines():
            found.take(Line("worker", rank, "stderr", line))
    return found


def traceback_of(program: str) -> str:
    """As Python itself writes it."""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    return ran.stderr


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("raise ValueError('no such image')", "ValueError: no such image"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        (
            "import json; json.loads('')",
            "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        ),
        (NESTED, "ValueError: no such"),  # the last one, of which the first line
    ],
)
def test_the_error_is_the_last_tracebacks(program: str, error: str) -> None:
    if "KeyboardInterrupt" in program:  # Python ends by the signal
        text = 'Traceback (most recent call last):\n  File "x", line 1, in <module>\nKeyboardInterrupt'
    else:
        text = traceback_of(program)
    assert taken((0, "loading\n" + text + "\nbye: all")).of("worker", 0) == error


def test_what_is_no_traceback_is_no_error() -> None:
    found = taken((0, "ValueError: in a log line"), (1, traceback_of("raise OSError('a')")))
    assert found.of("worker", 0) is None
    assert found.of("worker", 1) == "OSError: a"
    assert found.of("server", 1) is None
    stream: Stream = "stdout"
    for line in traceback_of("raise OSError('a')").splitlines():
        found.take(Line("worker", 2, stream, line))
    assert found.of("worker", 2) is None


def test_who_has_only_heard_of_another_is_not_first() -> None:
    heard = traceback_of("import gradwire; raise gradwire.TransportError('worker 1 failed')")
    found = taken((0, heard), (1, traceback_of("raise OSError('a')")), (2, heard))
    assert [found.is_of_another("worker", rank) for rank in range(3)] == [True, False, True]
    assert found.first_own("worker") == (1, "OSError: a")
    assert taken((0, heard)).first_own("worker") is None


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ("zmq: cannot listen on tcp://9.9.9.9:*: Cannot assign requested address", True),
        ("rendezvous: rank 0 cannot serve it: it is in use; take a free port of rank 0's host", True),
        ("nccl: worker 0 of 4: unhandled system error", True),
        ("worker 1: zmq: cannot listen on tcp://9.9.9.9:*", False),
        ("worker 0 was not heard by worker 10", False),
        ("server 0 closed its connection", False),
        ("the scheduler has ended the job", False),
    ],
)
def test_a_transport_error_that_names_nobody_else_is_the_processs_own(text: str, is_own: bool) -> None:
    found = taken((0, traceback_of(f"import gradwire; raise gradwire.TransportError({text!r})")))
    assert found.is_of_another("worker", 0) is not is_own
