"""What a rank asks for: an operation by its name, with all that the ranks have to agree on, and its form on the wire.

Only this is negotiated; tensors stay where they are until every rank has asked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Literal, NamedTuple

Kind = Literal[
    "allreduce",
    "allgather",
    "broadcast",
    "alltoall",
    "reducescatter",
    "barrier",
    "join",
    "call",
    "add_process_set",
    "remove_process_set",
]

GLOBAL_SET = 0


class TensorSpec(NamedTuple):
    """A tensor without its elements. dtype: as it travels, "float32"."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def is_floating(self) -> bool:
        """Whether its elements are of a floating point type."""
        return "float" in self.dtype

    @property
    def bytes(self) -> int:
        """Of its elements. Names of types end with how many bits an element has."""
        return math.prod(self.shape) * int(self.dtype.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"


class Key(NamedTuple):
    """By what ranks mean the same operation."""

    process_set: int
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" if self.name else self.kind


@dataclass(frozen=True)
class Request:
    """One operation of one rank.

    Attributes:
        name: the same on all ranks; by it requests find each other.
        process_set: id of the set whose members take part.
        tensors: of a group several, which complete together.
        op: how tensors are combined: "sum", "average", "min", "max", "product", "adasum".
        prescale, postscale: factors before and after the sum.
        root: rank whose values all get, of a broadcast.
        codec: spec and reply of the codec by which a sum travels; empty: exact.
        splits: rows for each member, of an alltoall. Ranks may differ in it.
        ranks: members of a process set that is to be added, or the id of one to be removed.
        dense_name: of a gather that carries the rows of a sparse gradient: the name of the sum that a rank submits in
            its place if its gradient is dense.
        is_unused: of a sum: its zeros stand for a gradient that this rank does not have, so it may be sparse elsewhere.
    """

    kind: Kind
    name: str
    process_set: int = GLOBAL_SET
    tensors: tuple[TensorSpec, ...] = ()
    op: str = ""
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    codec: str = ""
    splits: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    dense_name: str = ""
    is_unused: bool = False

    @property
    def key(self) -> Key:
        return Key(self.process_set, self.kind, self.name)


@dataclass(frozen=True)
class Announcement:
    """What a rank says in a round: what it asks for now, and whether it shuts down."""

    requests: Sequence[Request] = ()
    leaves: bool = False

    def encode(self) -> bytes:
        rows = [astuple(request) for request in self.requests]
        return json.dumps([rows, self.leaves], separators=(",", ":")).encode()

    @classmethod
    def decode(cls, blob: bytes) -> Announcement:
        rows, leaves = json.loads(blob)
        return cls([_request(*row) for row in rows], leaves)


def _request(
    kind: Kind,
    name: str,
    process_set: int,
    tensors: Sequence[tuple[str, Sequence[int]]],
    op: str,
    prescale: float,
    postscale: float,
    root: int,
    codec: str,
    splits: Sequence[int],
    ranks: Sequence[int],
    dense_name: str,
    is_unused: bool,
) -> Request:
    specs = tuple(TensorSpec(dtype, tuple(shape)) for dtype, shape in tensors)
    return Request(
        *(kind, name, process_set, specs, op, prescale, postscale, root, codec, tuple(splits), tuple(ranks)),
        *(dense_name, is_unused),
    )
