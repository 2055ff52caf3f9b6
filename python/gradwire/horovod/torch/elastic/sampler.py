"""ElasticSampler: each rank's share of the examples that an epoch has not seen yet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch.utils.data

from gradwire.horovod import session


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides a dataset's indices among the ranks; in the middle of an epoch, the remaining ones.

    Put it into a TorchState, call record_batch() after each batch, and set_epoch() at the end of each epoch.

    Attributes:
        epoch: number of the epoch.
        processed_num: indices that all ranks have processed in it.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """
        Args:
            dataset: of a fixed length.
            shuffle: in an order of each epoch's own, the same on all ranks.
            seed: of it, the same on all ranks.
        """
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Starts an epoch, of which nothing has been processed. Call it at the end of the previous one."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records a batch that every rank has processed."""
        self.processed_num += batch_size * session.current().topology.size

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divides the remaining indices."""
        place = session.current().topology
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        left = indices[self.processed_num :]
        # Again from the first, so that ranks have as many batches: more than once where fewer are left than ranks.
        padding = itertools.islice(itertools.cycle(left), -len(left) % place.size)
        self.indices = [*left, *padding][place.rank :: place.size]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)
