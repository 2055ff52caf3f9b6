"""Bucket: one of DDP's buckets in one step, its memory as runs of what travels, and the future that DDP awaits.

Threading: as BucketExchange.
"""

from __future__ import annotations

import functools

import torch
from torch._C._distributed_c10d import GradBucket

from gradwire.torch.ddp.local_shards import LocalShards
from gradwire.torch.elements import as_real, memory_dtype
from gradwire.torch.slots import encodable


class Bucket:
    """
    Attributes:
        buffer: DDP's memory.
        sent: whether the runs are on their way.
    """

    def __init__(self, bucket: GradBucket, shards: LocalShards, *, keeps_halves: bool) -> None:
        """A collective of the host's ranks.

        Args:
            shards: which parts of gradients this rank sends.
            keeps_halves: as memory_dtype().
        """
        self.sent = False
        self.buffer = bucket.buffer()
        self.future = future_of(self.buffer)
        self._shards = shards
        self._parameters: list[torch.Tensor] = bucket.parameters()
        self._dense = self.buffer.to_dense() if self.buffer.is_sparse else self.buffer
        # DDP too gives the buckets of complex parameters as real numbers, or as they are.
        self._flat = as_real(self._dense).reshape(-1)
        self._keeps_halves = keeps_halves
        dtype = memory_dtype(self._flat.dtype, keeps_halves=keeps_halves)
        self._sum = shards.begin_reduce_scatter(self._flat, self._parameters, dtype)

    @property
    def is_summed(self) -> bool:
        """Whether the host's ranks have summed it: then runs are there without a wait."""
        return self._sum.is_done

    @functools.cached_property
    def _staged(self) -> torch.Tensor:
        """What this rank sends, and receives, on a device where codecs can work, or on the CPU."""
        return encodable(self._sum.wait(), keeps_halves=self._keeps_halves)

    @functools.cached_property
    def runs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Parameters of which this rank has something to send, each with its run: part of DDP's own memory where
        gradients travel whole and the engine can take that; else of a copy.
        """
        runs = self._shards.split(self._staged, self._parameters)
        return [(p, run) for p, run in zip(self._parameters, runs, strict=True) if run.numel()]

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [parameter for parameter, _ in self.runs]

    def deliver(self, *, vetoed: bool) -> None:
        """Hands DDP the means that the runs hold. A collective of the host's ranks."""
        if vetoed and self._staged.numel():
            self._staged[0] = float("nan")  # for GradScaler to find
        mean = self._shards.all_gather(self._staged, self._flat, self._parameters)
        if self.buffer.is_sparse:
            result = mean.view(self._dense.shape).to(self.buffer).to_sparse(1)
        else:
            result = self.buffer
            if mean.data_ptr() != result.data_ptr():
                as_real(result).view(-1).copy_(mean)
        self.future.set_result(result)


def future_of(buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """A future whose value lies where buffer does."""
    devices: list[int | str | torch.device] | None
    devices = [buffer.device] if buffer.device.type == "cuda" else None
    return torch.futures.Future(devices=devices)
