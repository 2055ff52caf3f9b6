"""What travels: layers fused, cut and placed at full size as the store does it, and then divided.

The engine cuts no tensor finer than a codec unit of 65 536 elements, and here that would stand for a hundred times as
many. So a piece of the plan is a key of its own, with the priority of the plan's key, at the home that the plan gives
it.

Threading: values and pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire import _core
from gradwire.plan.simulation import ElementCost, Schedule, plan_limits

from replay.scale import Scale


@dataclass(frozen=True)
class Piece:
    """A part of a key: the elements that it has, those that it stands for, and the server that owns it."""

    elements: int
    full_elements: int
    owner: int


@dataclass(frozen=True)
class Key:
    """What travels under one name at full size. tensors: those in it, which leave when all their gradients are there,
    foremost first."""

    tensors: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Cut:
    """Says how tensors of so many elements travel, at full size. groups: tensors that are planned together, each by
    its elements: a model's layers, front layer first, are one group. cost: of an element, encoded."""

    groups: tuple[tuple[int, ...], ...]
    servers: int
    schedule: Schedule
    cost: ElementCost
    scale: Scale

    def all_keys(self) -> list[Key]:
        """Returns the keys of all groups in the order in which backward() completes them; tensors are numbered
        through."""
        longest = max(self.cost.push, self.cost.reply)
        found = []
        before = 0
        for group, plan in zip(self.groups, self._plans(0), strict=True):
            pieces: list[list[Piece]] = [[] for _ in plan.keys]
            for part in plan.parts:
                here = self.scale.framed_elements(part.elements, longest)
                pieces[part.key].append(Piece(here, part.elements, part.server))
            for key, of_key in zip(plan.keys, pieces, strict=True):
                found.append(Key(tuple(before + layer for layer in sorted(key.layers)), tuple(of_key)))
            before += len(group)
        return found

    def turns(self, rank: int) -> list[list[int]]:
        """Returns, by key, the order in which a rank encodes the pieces."""
        found = []
        for plan in self._plans(
            rank + 1
        ):  # as the engine does: with peers, the server in this worker comes last
            for key in plan.keys:
                turns = key.turns
                first = min(turns)
                found.append([turn - first for turn in turns])
        return found

    def _plans(self, first: int) -> list[_core.StepPlan]:
        limits = plan_limits(self.schedule, self.cost.push)
        return [_core.plan_step(group, self.servers, first, limits) for group in self.groups]


@dataclass(frozen=True)
class Declared:
    """A key of the store here. piece: which one it is of all pieces, numbered through; None: ballast, never pushed."""

    piece: int | None
    elements: int


def declaration(elements: Sequence[int], owners: Sequence[int], servers: int) -> list[Declared]:
    """Returns the order in which the store is told of the pieces, so that each is given to its owner.

    The store gives a whole key to the server with the fewest bytes so far, the lowest of equals. So that server's next
    piece is declared; where it has none left, ballast that keeps it from being the lightest again.
    """
    waiting: list[list[int]] = [[] for _ in range(servers)]
    totals = [0] * servers
    for piece, owner in enumerate(owners):
        waiting[owner].append(piece)
        totals[owner] += elements[piece]
    load, given = [0] * servers, [0] * servers
    found: list[Declared] = []
    left = len(elements)
    while left:
        server = load.index(min(load))
        if given[server] < len(waiting[server]):
            piece = waiting[server][given[server]]
            one = Declared(piece, elements[piece])
            given[server] += 1
            left -= 1
        else:
            one = Declared(None, max(totals) + 1 - load[server])
        load[server] += one.elements
        found.append(one)
    return found
