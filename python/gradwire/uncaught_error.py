"""Whether an error that nobody caught has ended the script: what leaves a job at exit asks."""

from __future__ import annotations

import sys


def ended_the_script() -> bool:
    """Whether an uncaught error has ended the script. Of sys.exit(), whatever its code, Python tells nothing; and an
    interactive session goes on after an error.
    """
    return getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")
