"""SyncBatchNorm: batch normalization over the batches of all ranks."""

from __future__ import annotations

import torch
from torch import nn

from gradwire.horovod import reduce_ops, session
from gradwire.horovod.torch.sums import allreduce


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """nn.BatchNorm1d to 3d with mean and variance over the batches of all ranks, in training.

    Batches of ranks may have different sizes. In evaluation, and on one rank, it is torch's. It also runs on the CPU,
    which Horovod's does not.

    Args:
        num_features: channels; inputs are (N, channels, ...).
        eps, momentum, affine, track_running_stats: as torch's, with torch's defaults.

    Source: Ioffe and Szegedy 2015, "Batch normalization", algorithm 1, with a minibatch of all ranks.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"hvd.SyncBatchNorm: expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalizes the input. A collective of all ranks in training, and so is its backward()."""
        if not (self.training and session.current().store.num_workers > 1):
            normalised: torch.Tensor = super().forward(input)
            return normalised
        self._check_input_dim(input)
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        mean, variance, elements = self._of_all_ranks(values)
        self._track(mean.detach(), variance.detach(), elements)
        broad = [1, -1] + [1] * (input.dim() - 2)
        result = (values - mean.view(broad)) * torch.rsqrt(variance + self.eps).view(broad)
        if self.affine:
            result = result * self.weight.view(broad) + self.bias.view(broad)
        return result.to(input.dtype)

    def _of_all_ranks(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Returns mean and variance of each channel, and the elements of one. Two sums, or the variance would be the
        difference of two large numbers.
        """
        axes = [0, *range(2, values.dim())]
        count = values.new_tensor([values.numel() // values.shape[1]])
        first = allreduce(torch.cat([values.sum(axes), count]), op=reduce_ops.Sum)
        elements, mean = first[-1].detach(), first[:-1] / first[-1].detach()
        centred = values - mean.view([1, -1] + [1] * (values.dim() - 2))
        variance = allreduce((centred * centred).sum(axes), op=reduce_ops.Sum) / elements
        return mean, variance, int(elements)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, elements: int) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        kept = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (elements / max(elements - 1, 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), kept)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), kept)
