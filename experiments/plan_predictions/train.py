"""What run.py predicts and measures: training steps of a network on random inputs, for as long as nobody ends them.

    gradwire run -n 2 -s 0 python experiments/plan_predictions/train.py mlp

A step is a real one: forward, loss, backward, SGD with momentum, and forward of a layer waits for its sum alone
(overlap_step), as `gradwire plan` has it. The store, its codec and its servers are the environment's. Inputs are made
once, before the first step: a step has no work that a profile cannot see.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gradwire.torch
import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fashion_mnist"))
from networks import lenet

_WIDTH = 2048  # of the MLP's hidden layers
_CHARACTERS, _TOKENS, _STATE, _BLOCKS = 128, 64, 256, 10  # of the transformer


def mlp() -> nn.Module:
    """Dense layers of 784, 2048, 2048, 2048 and 10; 10 020 874 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(784, _WIDTH), nn.ReLU()),
        *(nn.Linear(_WIDTH, _WIDTH), nn.ReLU()),
        *(nn.Linear(_WIDTH, _WIDTH), nn.ReLU()),
        nn.Linear(_WIDTH, 10),
    )


def transformer() -> nn.Module:
    """PyTorch's encoder, 10 layers of width 256 with 4 heads, over 64 characters; 7 963 264 parameters."""
    layer = nn.TransformerEncoderLayer(_STATE, 4, 4 * _STATE, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Embedding(_CHARACTERS, _STATE),
        nn.TransformerEncoder(layer, _BLOCKS, enable_nested_tensor=False),
        nn.Linear(_STATE, _CHARACTERS),
    )


@dataclass(frozen=True)
class Model:
    """make builds the network; batch makes its inputs and targets, of this many examples."""

    make: Callable[[], nn.Module]
    batch: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    examples: int


def _images(examples: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(examples, 1, 28, 28), torch.randint(10, (examples,))


def _sentences(examples: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(_CHARACTERS, (examples, _TOKENS)), torch.randint(_CHARACTERS, (examples, _TOKENS))


MODELS = {
    "lenet": Model(lenet, _images, 64),
    "mlp": Model(mlp, _images, 64),
    "transformer": Model(transformer, _sentences, 4),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("--seed", type=int, default=0, help="of weights, and with the rank of inputs")
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    chosen = MODELS[given.model]
    model = chosen.make()
    optimizer = gradwire.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9),
        model.named_parameters(),
        overlap_step=True,
    )
    torch.manual_seed(1 + given.seed + int(os.environ.get("GRADWIRE_RANK", "0")))
    inputs, targets = chosen.batch(chosen.examples)
    while True:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten()).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
