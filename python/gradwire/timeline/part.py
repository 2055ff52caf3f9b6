"""Reads what one process wrote of a timeline: lines of JSON, as kvstore/trace/FORMAT.md has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwire.timeline.span import SERVER_STAGES, STAGES, TIERS, Process, Span

VERSION = 1


@dataclass(frozen=True)
class Reading:
    """One comparison of a worker's clock with a server's, in nanoseconds.

    Attributes:
        ahead: what the server's clock shows beyond the worker's; off by at most half of round_trip. at: when, by the
            worker's.
    """

    server: int
    ahead: int
    round_trip: int
    at: int


@dataclass
class Part:
    """What one process noted, by its own clock."""

    process: Process
    workers: int
    servers: int
    servers_in_workers: bool
    store: str
    boot: str
    dropped: int
    keys: dict[tuple[int, int], str] = field(default_factory=dict)  # by tier and number
    readings: list[Reading] = field(default_factory=list)
    rows: list[Sequence[int]] = field(default_factory=list)

    def spans(self, keys: dict[tuple[int, int], str]) -> list[Span]:
        """Returns the spans. keys: names from all parts, since servers know numbers only."""
        found = []
        for stage, begin, end, key, offset, size, step, priority, peer, tier in self.rows:
            name = STAGES[stage]
            process = Process("server", self.process.rank) if name in SERVER_STAGES else self.process
            text = keys.get((tier, key), f"key {key}")
            found.append(
                Span(process, name, begin, end, text, offset, size, step, priority, peer, TIERS[tier])
            )
        return found


def read_part(path: Path) -> Part:
    """Reads one part.

    Raises:
        ValueError: it is no part, or a damaged one; says which line.
        OSError: it cannot be read.
    """
    read = 0  # lines
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            part = _head(json.loads(next(file, "")))
            for read, line in enumerate(file, 1):  # noqa: B007 (the error tells it)
                _add(part, json.loads(line))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(
            f"timeline: line {read + 1} of {path} is not a line of a trace ({error}); remove the "
            "file to continue without it, or run the job again"
        ) from None
    return part


def _head(row: Any) -> Part:
    if row["gradwire_timeline"] != VERSION:
        raise ValueError(f"version {row['gradwire_timeline']}, expected {VERSION}")
    return Part(
        Process(row["role"], row["rank"]),
        *(row["workers"], row["servers"], row["servers_in_workers"]),
        *(row["store"], row["boot"], row["dropped"]),
    )


def _add(part: Part, row: Any) -> None:
    if isinstance(row, list):
        if len(row) != 10 or not all(isinstance(number, int) for number in row):
            raise ValueError("a span is 10 whole numbers")
        if not 0 <= row[0] < len(STAGES):
            raise ValueError(f"stage {row[0]} is not known")
        if not 0 <= row[9] < len(TIERS):
            raise ValueError(f"tier {row[9]} is not known")
        part.rows.append(row)
    elif "key" in row:
        tier, key, name = row["key"]
        part.keys[tier, key] = name
    else:
        reading = row["clock"]
        if len(reading) != 4 or not all(isinstance(number, int) for number in reading):
            raise ValueError("a reading of a clock is 4 whole numbers")
        part.readings.append(Reading(*reading))
