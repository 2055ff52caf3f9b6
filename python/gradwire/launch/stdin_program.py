"""Detects commands that read their program from stdin, which workers do not have: `python3 - < train.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence

_INTERPRETER = re.compile(r"(?:.*/)?(?:python|pypy|bash|dash|sh|zsh|ksh)[\d.]*")
_IS_PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*")
_ENDS_AT_ONCE = ("-h", "--help", "-V", "--version")
_TAKE_A_WORD = ("-X", "-W", "-o", "+o")  # an option whose value is the next word
_PROGRAM_OF_PYTHON = re.compile(r"-[A-Za-z]*[cm].*")
_PROGRAM_OF_SHELL = re.compile(r"-[A-Za-z]*c")


def reads_program_from_stdin(command: Sequence[str]) -> bool:
    """Returns True if command is an interpreter (Python or a shell) without a program, or names /dev/stdin."""
    if "/dev/stdin" in command:
        return True
    if not command or _INTERPRETER.fullmatch(command[0]) is None:
        return False
    is_python = _IS_PYTHON.fullmatch(command[0]) is not None
    program = _PROGRAM_OF_PYTHON if is_python else _PROGRAM_OF_SHELL
    words = iter(command[1:])
    for word in words:
        if word == "-" or (word == "-s" and not is_python):
            return True
        if not word.startswith(("-", "+")) or program.fullmatch(word) or word in _ENDS_AT_ONCE:
            return False
        if word in _TAKE_A_WORD:
            next(words, None)
    return True
