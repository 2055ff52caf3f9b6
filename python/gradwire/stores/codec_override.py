"""GRADWIRE_COMPRESSION, which stands for the codec that a script names, and whether anything has taken it up.

A store that is never told to compress does not: of that, `gradwire ab` and who has set the variable have to hear.
"""

from __future__ import annotations

from gradwire.settings import definitions as settings

# Of this process.
_has_store = False
_is_taken = False


def offer() -> None:
    """Notes that this process has a store of a job, which could compress by it."""
    global _has_store
    _has_store = True


def take() -> None:
    """Notes that somebody compresses by it, if it is set."""
    global _is_taken
    _is_taken = True


def taken() -> str | None:
    """Takes it, and returns the codec; None: it is not set."""
    take()
    return settings.read().compression


def is_taken() -> bool | None:
    """Whether a store was told to compress, or an optimizer or a hook of gradwire's was made; None: there is no store,
    and the script may do with it what it likes."""
    return _is_taken if _has_store or _is_taken else None
