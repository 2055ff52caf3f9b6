"""What a training script trains: everything that is not the loop, the store or the codec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch


@dataclass(frozen=True)
class Task:
    """A network, its examples and how well it does.

    Attributes:
        dataset: its name, for the record.
        model: makes the network, after the seed has been set.
        examples: how many there are to train on.
        loss: of the network on the examples with these indices (int64), differentiable.
        score: of the network on what it has not seen.
        metric: what the score is: accuracy as a fraction, or loss.
        unit: what an example is called.
        device: where network and examples are; loss and score bring there what they are given.
    """

    dataset: str
    model: Callable[[], torch.nn.Module]
    examples: int
    loss: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]
    score: Callable[[torch.nn.Module], float]
    metric: Literal["accuracy", "loss"] = "accuracy"
    unit: str = "images"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
