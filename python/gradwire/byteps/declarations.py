"""Declared names: which of the sums of equal priority goes first."""

from __future__ import annotations

_declared: dict[str, int] = {}  # places by name
_PLACES = 1 << 16  # that are told apart, within a priority
_MOST_URGENT = (1 << 15) - 1  # so that both fit the store's priorities, of 32 bits


def declare(name: str) -> int:
    """Gives a name its place among those of equal priority; a name's first push_pull does so too.

    Args:
        name: of a tensor.

    Returns: 0, as BytePS does.

    Raises: TypeError: name is no text.
    """
    if not isinstance(name, str):
        raise TypeError(f"bps.declare: name is {name!r}, expected a str")
    _declared.setdefault(name, len(_declared))
    return 0


def place_of(name: str | None) -> int | None:
    """Returns a name's place, from 0, and declares it; None: what is nameless has none."""
    if name is None:
        return None
    declare(name)
    return _declared[name]


def store_priority(priority: int, place: int | None) -> int:
    """Returns what the store orders a sum by.

    Args:
        priority: BytePS's, which counts first; beyond +-32767 as these.
        place: of the name, from 0, which counts among equal ones; from 65535 on all are alike, as nameless sums are.

    Returns: a number of 32 bits, the higher, the sooner.
    """
    last = _PLACES - 1
    within = max(-_MOST_URGENT, min(priority, _MOST_URGENT))
    return within * _PLACES - (last if place is None else min(place, last))
