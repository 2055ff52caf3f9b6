"""Declared names: the order of sums that have the same priority."""

from __future__ import annotations

_declared: dict[str, int] = {}  # places by name
_PLACES = 1 << 16  # that are told apart, within a priority
_MOST_URGENT = (1 << 15) - 1  # so that both fit the store's priorities, of 32 bits


def declare(name: str) -> int:
    """Gives a name its place among those of equal priority. A name's first push_pull does so too.

    Args:
        name: name of a tensor.

    Returns: 0, as BytePS does.

    Raises: TypeError: name is not a str.
    """
    if not isinstance(name, str):
        raise TypeError(f"bps.declare: name is {name!r}, expected a str")
    _declared.setdefault(name, len(_declared))
    return 0


def place_of(name: str | None) -> int | None:
    """Returns a name's place, from 0, and declares it. A nameless tensor (None) has no place: None."""
    if name is None:
        return None
    declare(name)
    return _declared[name]


def store_priority(priority: int, place: int | None) -> int:
    """Returns the store's priority of a sum.

    Args:
        priority: BytePS's priority, which counts first; clamped to +-32767.
        place: the name's place, from 0, which counts among equal priorities. Places from 65535 on are equal, as are
            sums without a name.

    Returns: a number of 32 bits; a higher one is sent sooner.
    """
    last = _PLACES - 1
    within = max(-_MOST_URGENT, min(priority, _MOST_URGENT))
    return within * _PLACES - (last if place is None else min(place, last))
