"""Keys and priorities, as calls on a store are given them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Key = int | str


def pairs(verb: str, key: Key | Sequence[Key], value: Any) -> tuple[list[Key], list[Any]]:
    """Returns keys and values as lists, whether a call was given one or several."""
    if isinstance(key, int | str | np.integer):
        return [_key(verb, key)], [value]
    if not isinstance(key, list | tuple | np.ndarray):
        raise TypeError(f"{verb}: key is {key!r}, expected a str, an int or a list of them")
    keys = [_key(verb, name) for name in key]
    try:
        values = list(() if value is None else value)
    except TypeError:  # one number
        raise TypeError(
            f"{verb}: {len(keys)} keys but a {type(value).__name__}, expected a list of one value per key"
        ) from None
    if value is None or len(values) != len(keys):
        given = "none" if value is None else str(len(values))
        raise ValueError(f"{verb}: {len(keys)} keys but {given} values; give one value per key")
    return keys, values


def gathered(keys: Sequence[Key], *values: Sequence[Any]) -> tuple[list[Key], list[list[Any]]]:
    """Returns each key once, in the order in which they came, and what each of values has for it: of a key that comes
    several times a list, as if several devices had given it, which is what MXNet makes of it.
    """
    if len(set(keys)) == len(keys):
        return list(keys), [list(each) for each in values]
    places: dict[Key, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return list(places), [
        [each[own[0]] if len(own) == 1 else _flat(each[place] for place in own) for own in places.values()]
        for each in values
    ]


def _flat(values: Iterable[Any]) -> list[Any]:
    return [part for value in values for part in (value if isinstance(value, list | tuple) else [value])]


def _key(verb: str, key: Any) -> Key:
    if not isinstance(key, int | str | np.integer):
        raise TypeError(f"{verb}: key {key!r} is a {type(key).__name__}, expected a str or an int")
    if not isinstance(key, str):
        return int(key)
    try:
        key.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{verb}: key {key!r} is not text that UTF-8 can write; name it otherwise") from None
    return str.__str__(key)  # NumPy's text and members of a StrEnum name what plain text does


def check_priority(verb: str, priority: Any) -> None:
    """Raises ValueError for what is no whole number of 32 bits."""
    if not isinstance(priority, int | np.integer) or not -(2**31) <= priority < 2**31:
        raise ValueError(
            f"{verb}: priority={priority!r}, expected a whole number that 32 bits hold, such as -3"
        )
