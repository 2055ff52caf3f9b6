"""The words of a timeline: processes, stages and spans."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

# By number, as parts have them (kvstore/trace/trace.h).
STAGES = (
    "ready",
    "encode",
    "queue",
    "send",
    "receive",
    "decode",
    "wait",
    "server receive",
    "sum",
    "reply encode",
    "reply queue",
    "reply send",
)
SERVER_STAGES = frozenset(STAGES[7:])
# In the order in which a partition goes through them.
IN_ORDER = (*STAGES[:4], *STAGES[7:], *STAGES[4:7])
TIERS = ("job", "host")


class Process(NamedTuple):
    """Who did it: a server may be hosted by the worker of its rank."""

    role: str
    rank: int

    def __str__(self) -> str:
        return f"{self.role} {self.rank}"


class Span(NamedTuple):
    """One stage of one partition.

    Attributes:
        begin, end: nanoseconds; in a part by its process's clock, in a Timeline since its beginning.
        offset: elements. bytes: of the payload, or before encode and from decode on of the floats.
        step: round of the key. peer: rank of the other side; -1: none. tier: "job", or "host" where the workers of a
            host sum first.
    """

    process: Process
    stage: str
    begin: int
    end: int
    key: str
    offset: int
    bytes: int
    step: int
    priority: int
    peer: int
    tier: str

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) * 1e-9

    @property
    def round_id(self) -> tuple[str, str, int, int]:
        """What names a partition's round: the same for all who take part."""
        return self.tier, self.key, self.offset, self.step


@dataclass(frozen=True)
class Timeline:
    """A job's spans on one clock, in order of their beginning.

    Attributes:
        missing: processes that left no part. unaligned: those whose clocks could not be compared with the others'.
        dropped: spans that found their process's memory full, by process.
        of_another_time: of the missing ones, those whose part is an earlier job's.
        clock_error: seconds by which an effect stands before its cause, at worst; 0 where none does.
    """

    spans: list[Span]
    workers: int
    servers: int
    store: str
    missing: list[str] = field(default_factory=list)
    unaligned: list[str] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    of_another_time: list[str] = field(default_factory=list)
    clock_error: float = 0.0

    def facts(self) -> dict[str, Any]:
        """All but the spans."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        del named["spans"]
        return named
