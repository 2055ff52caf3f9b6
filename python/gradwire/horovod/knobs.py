"""The variables of Horovod's that have a meaning here; the others are those of gradwire (`gradwire doctor`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Knobs:
    """
    Attributes:
        fusion_bytes: sums without keys of the store (named_sums.py) travel together up to this many bytes; 0: never.
        cycle_seconds: between rounds in which a rank only listens.
        timeline: file to which rank 0 writes from init() on; None: start_timeline() says.
        marks_cycles: the timeline has rounds in it.
    """

    fusion_bytes: int = 128 * 2**20
    cycle_seconds: float = 0.001
    timeline: str | None = None
    marks_cycles: bool = False


def read(environ: Mapping[str, str] | None = None) -> Knobs:
    """Reads them.

    Raises: ValueError: the first bad one; says which, what it held and what was expected.
    """
    given = os.environ if environ is None else environ
    path = given.get("HOROVOD_TIMELINE", "")
    return Knobs(
        fusion_bytes=_number(given, "HOROVOD_FUSION_THRESHOLD", int, Knobs.fusion_bytes),
        cycle_seconds=_number(given, "HOROVOD_CYCLE_TIME", float, Knobs.cycle_seconds * 1e3) / 1e3,
        timeline=path if path and path != "DYNAMIC" else None,
        marks_cycles=given.get("HOROVOD_TIMELINE_MARK_CYCLES", "0") not in ("", "0"),
    )


def _number(given: Mapping[str, str], name: str, kind: Callable[[str], T], default: T) -> T:
    if not (text := given.get(name, "")):
        return default
    try:
        value = kind(text)
        if value >= 0:  # type: ignore[operator]
            return value
    except ValueError:
        pass
    raise ValueError(f"gradwire.horovod: {name}={text}: expected a number, 0 or more")
