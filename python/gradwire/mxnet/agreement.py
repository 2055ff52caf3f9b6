"""Whether the workers' optimizers have the same numbers in each step.

Each worker updates its own copy of the weights, so these stay alike only while all optimizers do. Trainer.step() sets
rescale_grad by the batch size of its own worker, and Trainer.set_learning_rate() changes that of its own. In MXNet's
dist_sync the servers' optimizer holds for all, and Horovod and BytePS let the weights differ silently.

Once a step a small sum travels beside those of the gradients: 8 bytes a number and worker. Each worker gives a row of
its own, and zeros elsewhere, so the sum is all workers' rows. The next step looks at it, or the end of the script, so
that all workers raise at the same place, and none waits for more than the others' last step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from gradwire.mxnet import optimizers
from gradwire.mxnet.errors import KVStoreError
from gradwire.mxnet.key_lists import Key

__all__ = ["Agreement"]

_WAYS = {
    "rescale_grad": "Trainer.step() sets it by its batch_size: give the same on all workers",
    "num_update": "load the same states on all workers",
}


class Sums(Protocol):
    """What sums the rows, without a codec."""

    def declare_exact(self, name: str, shape: tuple[int, ...]) -> Any:
        """Returns what a sum of float64 is known by from now on."""

    def begin_exchange(self, known: Any, values: Any) -> None:
        """Begins a sum of NumPy's values."""

    def end_exchange(self, known: Any) -> Any:
        """Waits for the sum, and returns it."""

    def at_end(self, look: Callable[[], None]) -> None:
        """Calls look() before the store is closed."""


class Agreement:
    """Of one optimizer of each worker. Threading: for the thread that uses the store."""

    def __init__(self, sums: Sums, name: str, rank: int, members: Sequence[int], optimizer: Any) -> None:
        """Collective of the members.

        Args:
            name: by which the numbers are summed.
            members: the ranks that take part, this worker's among them, in order.
            optimizer: one of the same class on all of them.
        """
        self._names = list(optimizers.numbers_in_use(optimizer))
        self._sums, self._members = sums, list(members)
        self._row = self._members.index(rank)
        self._known = sums.declare_exact(name, (len(members), len(self._names)))
        self._pushes: Counter[Key] = Counter()
        self._steps = 0  # begun
        self._looked = 0  # of these
        self._difference: str | None = None
        self._has_told = False  # the script of it
        sums.at_end(self._report_at_end)

    def note_push(self, key: Key, optimizer: Any) -> None:
        """Compares before the first push of each step. Workers may push keys in different orders: all begin a step as
        often as the key that is pushed most often.
        """
        self._pushes[key] += 1
        if self._pushes[key] > self._steps:
            self.compare(optimizer)

    def compare(self, optimizer: Any) -> None:
        """Looks at the numbers of the last step, and begins to compare those of the next.

        Raises: KVStoreError, from then on in every step: which number differed, in which step and on which ranks.
        """
        self._look()
        found = optimizers.numbers_in_use(optimizer)
        rows = np.zeros((len(self._members), len(self._names)))
        rows[self._row] = [found.get(name, optimizers.NO_NUMBER) for name in self._names]
        self._sums.begin_exchange(self._known, rows)
        self._steps += 1

    def _report_at_end(self) -> None:
        if not self._has_told:
            self._look()

    def _look(self) -> None:
        if self._looked < self._steps:
            self._looked = self._steps
            self._difference = self._difference or self._found(self._sums.end_exchange(self._known))
        if self._difference is not None:
            self._has_told = True
            raise KVStoreError(self._difference)

    def _found(self, everyone: Any) -> str | None:
        """Returns in words where the rows differ; None: nowhere."""
        first = everyone[0]
        differs = (everyone != first) & ~(np.isnan(everyone) & np.isnan(first))
        if not differs.any():
            return None
        place, row = np.argwhere(differs.T)[0]
        name, way = self._names[place], "set it on all workers in the same step"
        values = [
            None if value == optimizers.NO_NUMBER else float(value) for value in everyone[[0, row], place]
        ]
        return (
            f"step {self._steps}: {name} of the optimizer was {values[0]} on rank {self._members[0]} and {values[1]} "
            f"on rank {self._members[row]}; {_WAYS.get(name, way)}. Each worker updates its own copy of the weights, "
            "and the copies differ since that step: start again, or from a checkpoint of before it"
        )
