"""The networks, for images of 1x28x28 in 10 classes."""

from __future__ import annotations

import torch
from torch import nn


def lenet() -> nn.Module:
    """LeNet as in MXNet's examples (20 and 50 filters of 5x5, 500 hidden), with ReLU; 431 080 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


def mlp() -> nn.Module:
    """MXNet's mlp: 128 and 64 hidden units; 109 386 parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut. Source: He et al., Deep Residual Learning, 2015, figure 2."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet8() -> nn.Module:
    """Residual network of 8 layers, a block at 16, 32 and 64 channels each; 77 562 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(_Block(16, 16, 1), _Block(16, 32, 2), _Block(32, 64, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )


NETWORKS = {"lenet": lenet, "mlp": mlp, "resnet8": resnet8}
