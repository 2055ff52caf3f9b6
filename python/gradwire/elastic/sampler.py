"""Sampler: each worker's share of the examples that an epoch has not seen yet."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from gradwire import kv


class Sampler:
    """Yields this worker's indices of an epoch, for torch's DataLoader or your own loop.

    If the workers change in the middle of an epoch, the remaining examples are divided again. Every worker gets equally
    many; if they do not divide, some examples are taken twice. Put it into a State, so that all ranks agree on what
    remains.

    Attributes:
        epoch: number of the epoch.
        taken: examples of the epoch that all workers together have processed.
    """

    def __init__(self, examples: int, *, shuffle: bool = True, seed: int = 0) -> None:
        """
        Args:
            examples: how many there are, 1 or more.
            shuffle: in an order of each epoch's own, the same on all ranks.
            seed: of that order; the same on all ranks.

        Raises:
            ValueError: no examples.
        """
        if examples < 1:
            raise ValueError(f"elastic.Sampler: examples={examples}, expected 1 or more")
        self._examples, self._shuffle, self._seed = examples, shuffle, seed
        self._rank, self._num_workers = 0, 1
        self.epoch = self.taken = 0
        if (store := kv.joined()) is not None:
            self._rank, self._num_workers = store.rank, store.num_workers

    def set_epoch(self, epoch: int) -> None:
        """Starts an epoch, of which nothing has been taken."""
        self.epoch, self.taken = epoch, 0

    def record(self, batch_size: int) -> None:
        """Records that every worker has processed this many examples."""
        self.taken = min(self._examples, self.taken + batch_size * self._num_workers)

    def state_dict(self) -> dict[str, int]:
        """Returns the state for load_state_dict()."""
        return {"epoch": self.epoch, "taken": self.taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what state_dict() returned."""
        self.epoch, self.taken = int(state["epoch"]), int(state["taken"])

    def share_among(self, rank: int, num_workers: int) -> None:
        """Sets this worker's rank, and num_workers, the number of workers. A State calls it."""
        self._rank, self._num_workers = rank, num_workers

    def _left(self) -> list[int]:
        order = list(range(self._examples))
        if self._shuffle:
            random.Random(f"{self._seed} {self.epoch}").shuffle(order)
        return order[self.taken :]

    def __iter__(self) -> Iterator[int]:
        left = self._left()
        for place in range(self._rank, len(self) * self._num_workers, self._num_workers):
            yield left[place % len(left)]

    def __len__(self) -> int:
        return -(-(self._examples - self.taken) // self._num_workers)
