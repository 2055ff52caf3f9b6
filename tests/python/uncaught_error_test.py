"""Whether an uncaught error, or sys.exit() with one, has ended a script, as seen at its exit."""

from __future__ import annotations

import subprocess
import sys

import pytest

AT_EXIT = """\
import atexit, sys
from gradwire.stores import uncaught_error
uncaught_error.watch_exits()
atexit.register(lambda: print(uncaught_error.ended_the_script()))
"""
CAUGHT = """\
try:
    sys.exit(3)
except SystemExit as end:
    assert (end.code, repr(end), str(type(end))) == (3, "SystemExit(3)", "<class 'SystemExit'>")
    import pickle
    assert type(pickle.loads(pickle.dumps(end))) is SystemExit
"""
IN_A_THREAD = "from threading import Thread\nt = Thread(target=sys.exit, args=(3,))\nt.start()\nt.join()"


@pytest.mark.parametrize(
    ("flags", "end", "has_ended", "code"),
    [
        ([], "", False, 0),
        ([], "raise OSError('no such file')", True, 1),
        ([], "try: raise OSError\nexcept OSError: pass", False, 0),
        (["-i"], "raise OSError('no such file')", False, 0),  # the session goes on, and ends with its input
        ([], "sys.exit(3)", True, 3),
        ([], "sys.exit('no such file')", True, 1),
        ([], "sys.exit((1, 2))", True, 1),
        ([], "try: sys.exit(3)\nfinally: print(end='')", True, 3),
        ([], "sys.exit()", False, 0),
        ([], "sys.exit(0)", False, 0),
        ([], CAUGHT, False, 0),
        ([], CAUGHT + "sys.exit(0)", False, 0),
        ([], IN_A_THREAD, False, 0),
        (["-i"], "sys.exit(3)", False, 0),
        ([], "raise SystemExit(3)", False, 3),  # of which nobody is told
    ],
)
def test_an_uncaught_error_ends_a_script_but_no_interactive_session(
    flags: list[str], end: str, has_ended: bool, code: int
) -> None:
    command = [sys.executable, *flags, "-c", AT_EXIT + end]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert (ran.stdout.strip(), ran.returncode) == (str(has_ended), code), ran
    assert end != IN_A_THREAD or not ran.stderr, ran  # threading is silent of it


def test_what_watches_sys_exit_asks_what_was_there_before_and_is_asked_by_what_comes_after() -> None:
    told = "before = sys.exit\ndef {0}(*code): print('{0}'); before(*code)\nsys.exit = {0}\n"
    first, last = told.format("first"), told.replace("before", "ours").format("last")
    program = "import sys\n" + first + AT_EXIT + last + "uncaught_error.watch_exits()\nsys.exit(3)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (ran.stdout.split(), ran.returncode) == (["last", "first", "True"], 3), ran
