"""Which device a worker trains on."""

from __future__ import annotations

import os

import torch


def choose(gpus: list[int]) -> torch.device:
    """Returns the CUDA device of this worker, by its rank on its host (LOCAL_RANK, else 0); the CPU without gpus.

    Raises:
        ValueError: there is no such device here; says how many there are.
    """
    if not gpus:
        return torch.device("cpu")
    number = gpus[int(os.environ.get("LOCAL_RANK", "0")) % len(gpus)]
    count = torch.cuda.device_count()
    if number >= count:
        raise ValueError(
            f"train: --gpus names device {number}, but {count} CUDA devices can be used here; give one of those, "
            "or leave --gpus out to train on the CPU"
        )
    return torch.device("cuda", number)
