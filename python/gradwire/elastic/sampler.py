"""Sampler: each worker's share of what an epoch has not seen yet, whoever the workers are."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from gradwire import kv


class Sampler:
    """Yields this worker's indices of an epoch, for torch's DataLoader or a loop of one's own.

    In the middle of an epoch, after the workers have changed, what is left of it is shared out anew. Every worker gets
    as many: where they do not divide, some of what is left are taken twice. Give it to a State, so that all ranks agree
    on what is left.

    Attributes:
        epoch: number of the epoch.
        taken: examples of it that all workers together have processed.
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
        """Begins an epoch, of which nothing has been taken."""
        self.epoch, self.taken = epoch, 0

    def record(self, batch_size: int) -> None:
        """Notes that every worker has processed this many examples."""
        self.taken = min(self._examples, self.taken + batch_size * self._num_workers)

    def state_dict(self) -> dict[str, int]:
        """What load_state_dict() goes on from."""
        return {"epoch": self.epoch, "taken": self.taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what state_dict() returned."""
        self.epoch, self.taken = int(state["epoch"]), int(state["taken"])

    def share_among(self, rank: int, num_workers: int) -> None:
        """Says who this worker is from here on. A State does."""
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
