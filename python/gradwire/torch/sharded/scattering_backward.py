"""ScatteringBackward: what the reduce-scatters of one model share of a backward().

At most two sums are on their way, since each keeps the gradients of its module. The next one first waits for the older.

Threading: on autograd's thread, but for veto() and is_kept_at_once.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from gradwire.torch import backward_pass
from gradwire.torch.backward_pass import BackwardPass
from gradwire.torch.process_group import naming_ranks

if TYPE_CHECKING:
    from gradwire.collectives import Begun
    from gradwire.kv import KVStore
    from gradwire.torch.sharded.module_shards import Shard

_MOST_ON_THEIR_WAY = 2


class Ending(Protocol):
    """A module's reduce-scatter."""

    def end_backward(self, *, vetoed: bool) -> None:
        """Keeps what the backward() that is over has left, or goes back to what was before it."""


@dataclass
class _Sum:
    """One that is on its way.

    Attributes:
        begun: makes it.
        target: where it is to be copied.
        runs: parts of target that are to be added to gradients then.
    """

    begun: Begun[torch.Tensor]
    target: torch.Tensor
    runs: Sequence[tuple[Shard, torch.Tensor]]


class ScatteringBackward:
    """What the modules of a model share of one backward(): sums on their way, when it is over, and whether any of them
    met a NaN.
    """

    sync = True  # as a Listener of BackwardPass

    def __init__(self, store: KVStore, on_first_end: Callable[[], None]) -> None:
        """
        Args:
            store: its workers are the group's ranks.
            on_first_end: called when the first backward() is over.
        """
        self._store = store
        self._on_first_end: Callable[[], None] | None = on_first_end
        self._pass = BackwardPass(self, store, after_callbacks=True)
        self._entered: set[Ending] = set()
        self._sums: collections.deque[_Sum] = collections.deque()
        self._vetoed = False
        self._has_failed = False
        self._is_outside = False

    def enter(self, scatter: Ending) -> bool:
        """Has it hear the end of the backward() that runs.

        Returns: False: none runs. torch's pipelines reduce gradients after their backward passes, and look at them at
            once. These reductions are over when the next begin: settle().
        """
        is_in_backward = backward_pass.is_running()
        if is_in_backward:
            self._pass.enter()
        elif not self._is_outside or scatter in self._entered:
            self.settle()
            self._is_outside = True
        self._entered.add(scatter)
        return is_in_backward

    def begin(
        self,
        total: Callable[[], torch.Tensor],
        target: torch.Tensor,
        runs: Sequence[tuple[Shard, torch.Tensor]] = (),
    ) -> None:
        """Begins to make a sum. A collective.

        Args:
            total: returns it; runs on the thread of the store's collectives.
            target: where it is to be copied.
            runs: parts of target that are to be added to gradients then.
        """
        while len(self._sums) >= _MOST_ON_THEIR_WAY:
            self._take_in_oldest()
        self._sums.append(_Sum(self._store.collectives.begin(total), target, runs))

    def take_in(self) -> None:
        """Waits for the sums that are on their way, and writes them where they belong."""
        while self._sums:
            self._take_in_oldest()

    @torch.no_grad()
    def _take_in_oldest(self) -> None:
        began = time.perf_counter()
        with naming_ranks(self._store):
            total = self._sums[0].begun.result()
        self._store.waited_seconds += time.perf_counter() - began
        done = self._sums.popleft()
        if total.is_cuda:  # made on another stream, whose memory it is
            total.record_stream(torch.cuda.current_stream(total.device))
        done.target.copy_(total.view_as(done.target))
        for shard, run in done.runs:
            shard.add(run)

    @property
    def is_kept_at_once(self) -> bool:
        """Whether what a sum has left is what the next one begins with, though the end that keeps it is still to come:
        outside a backward().
        """
        return self._is_outside and not self._vetoed

    def veto(self) -> None:
        """Takes back what all of them do in it."""
        self._vetoed = True

    def settle(self) -> None:
        """Ends what has had no end: reductions outside a backward(), or a backward() that has failed. It may have
        failed on this rank alone: the others, who have had the same reduce-scatters and the same vetoes, keep or take
        back the same, and the scales that all have agreed stay alike. Its gradients are of no use, and may be others'
        by now.
        """
        if not self._has_failed and not self._is_outside:
            return
        self._has_failed = self._is_outside = False
        for each in self._sums:
            each.begun.wait()
        self._sums.clear()
        self._end()

    def _end(self) -> None:
        """Has the modules keep what they have left, or take it back."""
        for scatter in self._entered:
            scatter.end_backward(vetoed=self._vetoed)
        self._entered.clear()
        self._vetoed = False

    def on_backward_begin(self) -> None:
        """Ends what has had no end, before the next one's first sum."""
        self.settle()

    def on_backward_end(self) -> None:
        """Nothing is to be done: all is being sent."""

    def on_all_sent(self) -> None:
        """Waits for all sums."""
        try:
            self.take_in()
        except BaseException:
            self._has_failed = True
            raise
        self._end()
        if (on_first_end := self._on_first_end) is not None:
            self._on_first_end = None
            on_first_end()

    def on_backward_failed(self) -> None:
        """Does not wait: this may be any thread, at any time."""
        self._has_failed = True
