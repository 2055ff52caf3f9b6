"""What is trained: small transformers that take seconds of one processor, on text and on pictures."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

EXPERIMENTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(EXPERIMENTS / name) for name in ("char_lm", "fashion_mnist")] + [str(EXPERIMENTS)]

import dataset  # noqa: E402
import networks  # noqa: E402
import text  # noqa: E402

_SCORED = 1024  # windows of text that a score is of; of pictures it is all 10 000
_PICTURES = 20_000  # to train on
_PATCH = 7  # pixels


@dataclass(frozen=True)
class Task:
    """One training, the same for all arms.

    Attributes:
        network: makes it, after the seed has been set.
        examples: how many there are to train on.
        loss: of the network on the examples with these indices.
        score: loss on what the network has not seen, in nats, and the share that it gets right.
        steps, batch_size, lr: of one run; batches are one worker's.
    """

    network: Callable[[], nn.Module]
    examples: int
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor]
    score: Callable[[nn.Module], tuple[float, float]]
    steps: int = 400
    batch_size: int = 8
    lr: float = 5e-3

    @property
    def flags(self) -> str:
        """What a run with other numbers differs in."""
        return f"steps={self.steps} batch={self.batch_size} lr={self.lr:g}"


def _characters(network: Callable[[], nn.Module], lr: float) -> Task:
    loaded = text.load()

    def loss(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())

    def right(model: nn.Module, windows: torch.Tensor) -> float:
        return float((model(windows[:, :-1]).argmax(-1) == windows[:, 1:]).float().mean())

    scored = loaded.validation[:_SCORED]
    return Task(
        network,
        len(loaded.train),
        lambda model, pick: loss(model, loaded.train[pick]),
        lambda model: _score(model, scored, loss, right),
        lr=lr,
    )


def _pictures(steps: int) -> Task:
    loaded = dataset.load(_PICTURES)

    def loss(model: nn.Module, pick: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(loaded.test_images[pick]), loaded.test_labels[pick])

    def right(model: nn.Module, pick: torch.Tensor) -> float:
        return float((model(loaded.test_images[pick]).argmax(1) == loaded.test_labels[pick]).float().mean())

    return Task(
        lambda: VisionTransformer(32, 2, 2),
        len(loaded.train_images),
        lambda model, pick: F.cross_entropy(model(loaded.train_images[pick]), loaded.train_labels[pick]),
        lambda model: _score(model, torch.arange(len(loaded.test_labels)), loss, right),
        steps=steps,
        batch_size=16,
    )


@torch.no_grad()
def _score(
    model: nn.Module,
    scored: torch.Tensor,
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor],
    right: Callable[[nn.Module, torch.Tensor], float],
) -> tuple[float, float]:
    model.eval()
    parts = scored.split(128)
    losses = sum(float(loss(model, part)) * len(part) for part in parts)
    rights = sum(right(model, part) * len(part) for part in parts)
    model.train()
    return losses / len(scored), rights / len(scored)


class VisionTransformer(nn.Module):
    """Pictures (batch, 1, 28, 28) -> logits (batch, 10): patches of 7 x 7 as tokens, which all see each other.

    Source: Dosovitskiy et al. 2020, "An image is worth 16x16 words", section 3.1, with the mean in place of a class
    token.
    """

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Linear(_PATCH * _PATCH, width)
        self.places = nn.Parameter(0.02 * torch.randn((28 // _PATCH) ** 2, width))
        one = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(one, layers, enable_nested_tensor=False)
        self.norm, self.logits = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = F.unfold(images, _PATCH, stride=_PATCH).transpose(1, 2)
        logits: torch.Tensor = self.logits(
            self.norm(self.layers(self.patches(patches) + self.places)).mean(1)
        )
        return logits


def _micro() -> nn.Module:
    """1 layer of width 32: 24 000 parameters."""
    return networks.CharTransformer(32, 1, 2)


_MAKERS: dict[str, Callable[[], Task]] = {
    "char_lm_micro": lambda: _characters(_micro, 1e-2),
    "char_lm_tiny": lambda: _characters(networks.tiny, 3e-3),
    "char_lm_small": lambda: _characters(networks.small, 2e-3),
    "vit": lambda: _pictures(400),
    "vit_long": lambda: _pictures(2000),
}
NAMES = tuple(_MAKERS)


@functools.cache
def load(name: str) -> Task:
    """Loads a task's examples.

    Raises: ValueError: there is no such task.
    """
    if name not in _MAKERS:
        raise ValueError(f"adamw: no task {name!r}; expected one of {', '.join(NAMES)}")
    return _MAKERS[name]()
