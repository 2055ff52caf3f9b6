"""Networks for images of 3x224x224 in 1000 classes, for --benchmark 1: what the field's tables are measured with."""

from __future__ import annotations

import torch
from torch import nn


def vgg16() -> nn.Module:
    """VGG16 without batch norms; 138 357 544 parameters. Source: Simonyan & Zisserman 2015, table 1, column D."""
    layers: list[nn.Module] = []
    inputs = 3
    for block, outputs in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(block):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers,
        *(nn.AdaptiveAvgPool2d(7), nn.Flatten()),
        *(nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()),
        nn.Linear(4096, 1000),
    )


class _Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut. Source: He et al. 2015, figure 5; the stride at the 3x3."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    """ResNet-50; 25 557 032 parameters. Source: He et al., Deep Residual Learning, 2015, table 1."""
    layers: list[nn.Module] = [
        *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    ]
    inputs = 64
    for count, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        for index in range(count):
            layers.append(_Bottleneck(inputs, width, stride if index == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


IMAGENET_NETWORKS = {"vgg16": vgg16, "resnet50": resnet50}
