"""Whether an error that nobody caught has ended the script: what leaves a job at exit asks.

Python keeps an uncaught error in sys.last_value, but nothing of a sys.exit(1) that has ended the script: it asks the
exception for its code, clears it and begins to exit. So what sys.exit() raises for an error notes who asks: the
interpreter does so when no frame is left, and everybody else from one.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

_exit_before: Callable[..., NoReturn] | None = None  # what sys.exit was before watch_exits()
_exit_was_an_error = False
_exit_in_words = ""


def ended_the_script() -> bool:
    """Whether an uncaught error has ended the script, or, since watch_exits(), a sys.exit() with a code other than 0.
    An interactive session goes on after an error.
    """
    is_uncaught = getattr(sys, "last_value", None) is not None or _exit_was_an_error
    return is_uncaught and not hasattr(sys, "ps1")


def in_words() -> str:
    """Says which error has ended the script: "ValueError: no such file", "exit code 3"; empty where none has."""
    if not ended_the_script():
        return ""
    error = getattr(sys, "last_value", None)
    return _exit_in_words if error is None else describe(error)


def describe(error: BaseException) -> str:
    """Writes an error as the last line of its traceback has it."""
    line = " ".join(traceback.format_exception_only(error)).strip()
    return line.encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent


def watch_exits() -> None:
    """Has ended_the_script() know of sys.exit(), too, from here on. A `raise SystemExit(1)` that a script writes itself
    stays unknown.
    """
    global _exit_before
    if _exit_before is None:
        _exit_before, sys.exit = sys.exit, _watched_exit


class _ErrorExit(SystemExit):
    """A sys.exit() with a code other than 0, on the main thread. To all who look it is a SystemExit."""

    __module__ = SystemExit.__module__

    def __getattribute__(self, name: str) -> Any:
        if name == "code" and sys._getframe().f_back is None:
            global _exit_was_an_error, _exit_in_words
            _exit_was_an_error = True
            code = super().__getattribute__(name)
            _exit_in_words = f"exit code {code}" if isinstance(code, int) else f"SystemExit: {code}"
        return super().__getattribute__(name)

    def __reduce__(self) -> Any:
        return SystemExit, self.args


_ErrorExit.__name__ = _ErrorExit.__qualname__ = SystemExit.__name__


def _watched_exit(status: Any = None, /) -> NoReturn:
    assert _exit_before is not None
    try:
        _exit_before(status)
    except SystemExit as end:
        is_error = end.code is not None and end.code != 0
        # One on another thread ends no script, and threading takes none but a SystemExit itself for an exit.
        if type(end) is SystemExit and is_error and threading.current_thread() is threading.main_thread():
            raise _ErrorExit(*end.args) from None
        raise
