"""LiveParameters: which parameters an exchange knows, and which of those take part in its steps.

What is frozen leaves the exchange, and comes back when it thaws. What is frozen from the beginning, or added by another
way than the optimizer's add_param_group(), waits until the end of a step in which it has a gradient.

Threading: one thread at a time. Every rank runs the same program, so all freeze, thaw and add the same at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gradwire.torch.exchange import Exchange
from gradwire.torch.gradient_hooks import GradientHooks
from gradwire.torch.gradient_memory import GradientMemory
from gradwire.torch.row_agreement import RowAgreement
from gradwire.torch.slots import Slot, home_of, runs_of
from gradwire.torch.sparse_gradients import has_float32_rows

Named = Sequence[tuple[str, torch.Tensor]]
TakesPart = Callable[[torch.Tensor], bool]


class LiveParameters:
    """Parameters are known by their index, in the order in which they were declared.

    Attributes:
        indices: of those that take part in steps.
    """

    def __init__(
        self,
        exchange: Exchange,
        memory: GradientMemory,
        hooks: GradientHooks,
        rows: RowAgreement,
        *,
        known_sparse: frozenset[str],
        keeps_halves: bool,
    ) -> None:
        """
        Args:
            exchange, memory, hooks, rows: what is told of parameters that are taken in.
            known_sparse: names of those whose gradients travel as rows from the beginning.
            keeps_halves: slots of gradients of 16 bits are of their dtype.
        """
        self._exchange, self._memory, self._hooks, self._rows = exchange, memory, hooks, rows
        self._known_sparse = known_sparse
        self._keeps_halves = keeps_halves
        self.indices: list[int] = []
        self._waiting: list[tuple[str, torch.Tensor]] = []  # not declared yet
        self._places: dict[torch.Tensor, int] = {}  # in the order of the forward pass
        self._device: torch.device | None = None  # of all slots

    def add(self, named: Named) -> None:
        """Takes parameters in, behind the others. A collective, between steps."""
        self._give_places(named)
        self._waiting += [(name, p) for name, p in named if not p.requires_grad]
        self._declare([(name, p) for name, p in named if p.requires_grad])
        self.bind()

    def add_later(self, named: Named) -> None:
        """Takes parameters in with the end of the next step, or before the optimizer takes it."""
        self._give_places(named)
        self._waiting += named

    def choose(self, takes_part: Callable[[int], bool]) -> None:
        """Leaves out of steps those that do not take part, and takes in again those that do. A collective where there
        is a change.
        """
        chosen = [index for index in range(len(self._memory)) if takes_part(index)]
        if chosen != self.indices:
            self.indices = chosen
            self.bind()

    def waits_for(self, takes_part: TakesPart) -> bool:
        """True where take_in_waiting() would take a parameter in."""
        return any(takes_part(parameter) for _, parameter in self._waiting)

    def take_in_waiting(self, takes_part: TakesPart) -> range:
        """Takes in parameters that have waited; returns which they are. A collective where there are any; bind()
        follows, between steps.
        """
        first = len(self._memory)
        taken = [(name, p) for name, p in self._waiting if takes_part(p)]
        if taken:
            self._waiting = [(name, p) for name, p in self._waiting if not takes_part(p)]
            self._declare(taken)
        return range(first, len(self._memory))

    def use_rows(self, indices: Sequence[int]) -> None:
        """Has the gradients of these be sparse ones, which travel as rows where rows can hold them. A collective,
        between steps; then bind().
        """
        self._rows.add(indices)
        for index in indices:
            self._memory.use_rows(index)
        if travelling := [index for index in indices if self._memory.travels_as_rows(index)]:
            self._exchange.use_rows(travelling)

    def bind(self) -> None:
        """Has small parameters that take part travel together. A collective, between steps."""
        self._exchange.bind(self.indices)

    def _give_places(self, named: Named) -> None:
        for _, parameter in named:
            self._places[parameter] = len(self._places)
        if self._device is None:
            self._device = home_of([parameter for _, parameter in named])

    def _declare(self, named: Named) -> None:
        named = [(name, p) for name, p in named if p.numel() > 0]
        if not named:
            return
        assert self._device is not None
        first = len(self._memory)
        known = [
            self._rows.sends_rows and name in self._known_sparse and has_float32_rows(p) for name, p in named
        ]
        dense = [p for (_, p), rows in zip(named, known, strict=True) if not rows]
        memory = iter(runs_of(dense, self._device, keeps_halves=self._keeps_halves))
        runs = [None if rows else next(memory) for rows in known]
        self._exchange.add(named, runs, [self._places[p] for _, p in named])
        for (name, p), run in zip(named, runs, strict=True):
            self._memory.add(name, p, None if run is None else Slot(run, p))
            self._hooks.add(p)
        self.indices += range(first, len(self._memory))
        self._rows.grow(len(named))
        self.use_rows([first + i for i, rows in enumerate(known) if rows])
