"""Whether an uncaught error has ended a script, as seen at its exit."""

from __future__ import annotations

import subprocess
import sys

import pytest

AT_EXIT = """\
import atexit, sys
from gradwire import uncaught_error
atexit.register(lambda: print(uncaught_error.ended_the_script()))
"""


@pytest.mark.parametrize(
    ("flags", "end", "has_ended"),
    [
        ([], "", False),
        ([], "raise OSError('no such file')", True),
        ([], "try: raise OSError\nexcept OSError: pass", False),
        ([], "sys.exit(3)", False),
        (["-i"], "raise OSError('no such file')", False),  # the session goes on, and ends with its input
    ],
    ids=["its end", "an error", "a caught error", "sys.exit()", "an interactive session"],
)
def test_an_uncaught_error_ends_a_script_but_no_interactive_session(
    flags: list[str], end: str, has_ended: bool
) -> None:
    command = [sys.executable, *flags, "-c", AT_EXIT + end]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == str(has_ended), ran
