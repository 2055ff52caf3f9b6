"""ShardSampler: a worker's share of a data set for torch's DataLoader, shuffled in every epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from gradwire.samplers import shard
from gradwire.torch import session


class ShardSampler(Sampler[int]):
    """Yields this worker's indices. Together, the workers take every example exactly once.

    torch's DistributedSampler repeats or drops examples to make shares equal; this sampler does not. A worker with
    fewer batches calls the optimizer's join() at the end of an epoch:

        sampler = gw.torch.ShardSampler(data, store, seed=7)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for batch in DataLoader(data, batch_size=32, sampler=sampler): ...
            last = optimizer.join()
            # The others lack the steps that were taken after they had joined.
            gw.torch.broadcast_parameters(model.state_dict(), root_rank=last)
            gw.torch.broadcast_optimizer_state(optimizer, root_rank=last)

    With momentum_correction, broadcast_optimizer_state() replaces each worker's momentum by that of `last`.
    """

    def __init__(
        self,
        data: Sized,
        store: Any = None,
        *,
        work_load_list: Sequence[float] | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        """
        Args:
            data: the data set, the same on all ranks.
            store: whose rank and number of workers count. Default: as for DistributedOptimizer.
            work_load_list: how much of the work each rank takes; as for gradwire.samplers.shard.
            shuffle: take the share of another order of all examples in each epoch; the same order on all ranks.
            seed: of that order; the same on all ranks.

        Raises:
            ValueError: bad loads.
        """
        chosen = session.own_store(store)
        self._examples = len(data)
        self._share = shard(self._examples, chosen.rank, chosen.num_workers, work_load_list)
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Selects the order of the next pass; the same epoch on all ranks. Without it, all passes have one order."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if not self._shuffle:
            return iter(self._share)
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        order = torch.randperm(self._examples, generator=generator, device="cpu")
        return iter(order[self._share.start : self._share.stop].tolist())

    def __len__(self) -> int:
        return len(self._share)
