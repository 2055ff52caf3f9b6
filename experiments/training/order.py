"""Who trains on what, and when."""

from __future__ import annotations

import torch


def batches(
    examples: int, epoch: int, seed: int, rank: int, workers: int, batch_size: int
) -> list[torch.Tensor]:
    """Returns this rank's batches of one epoch: indices, shuffled by seed and epoch, as many for every rank.

    Step i of the job takes examples [i*workers*batch_size, (i+1)*workers*batch_size) of the shuffled order,
    each rank its own batch_size of them; what does not fill a step is left for another epoch.
    """
    order = torch.randperm(examples, generator=torch.Generator().manual_seed(seed * 100_003 + epoch))
    steps = examples // (workers * batch_size)
    return list(order[: steps * workers * batch_size].view(steps, workers, batch_size)[:, rank])
