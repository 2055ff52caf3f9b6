"""What the programs of integrations_test.py train on: a small network and batches that every rank draws for itself."""

from __future__ import annotations

import os
from pathlib import Path

import gradwire as gw
import torch
import torch.distributed as dist
from torch import nn

SAVED, STEPS = 3, 6  # a run of STEPS is saved after SAVED of them
BATCH = 16


def mlp() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(32, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 8))


def batch(step: int, rank: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's inputs and labels in a step; rank: default: this one."""
    rank = dist.get_rank() if rank is None else rank
    x = torch.randn(BATCH, 32, generator=torch.Generator().manual_seed(1000 * rank + step))
    return x, x[:, :8].argmax(1)


def mean_over_ranks(loss: torch.Tensor) -> float:
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def require_near(losses: list[float], plain: list[float]) -> None:
    """Both runs have learned, and the compressed one as much."""
    ours, theirs = (sum(each[-20:]) / 20 for each in (losses, plain))
    assert ours < 0.8 * losses[0], losses
    assert abs(ours - theirs) < 0.02 * theirs, (ours, theirs)


def require_equal(one: nn.Module, other: nn.Module) -> None:
    """To the bit."""
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def weights_file(framework: str) -> Path:
    """Where a run that was not interrupted leaves its weights."""
    return Path(os.environ["TEST_FOLDER"]) / f"{framework}.weights"


def leave_the_store() -> None:
    """For another one, as of another job."""
    dist.barrier()
    if (store := gw.kv.joined()) is not None:
        store.close()
    dist.barrier()
