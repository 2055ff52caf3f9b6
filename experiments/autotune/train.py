"""What run.py tunes: training steps of a network on random inputs, for as long as nobody ends them.

    gradwire run -n 2 -s 0 python experiments/autotune/train.py 25m none --steps 40

A step is a real one: forward, backward, SGD with momentum.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import gradwire as gw
import gradwire.torch
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fashion_mnist"))
from imagenet_networks import vgg16

_FOREVER = 1_000_000
_ROWS = 32  # of a batch of 25m
_IMAGE = 32  # pixels a side: VGG16's tensors do not depend on it, its compute does


def make(model: str) -> nn.Module:
    if model == "vgg16":
        return vgg16()
    return nn.Sequential(*(nn.Linear(1000, 1000, bias=False) for _ in range(25)))


def batch(model: str, generator: torch.Generator) -> torch.Tensor:
    shape = (1, 3, _IMAGE, _IMAGE) if model == "vgg16" else (_ROWS, 1000)
    return torch.randn(shape, generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", choices=("25m", "vgg16"))
    parser.add_argument("codec", help="none, 2bit, ...")
    parser.add_argument(
        "--steps", type=int, default=_FOREVER, help="then it ends by itself, and says a step's time"
    )
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(0)
    model = make(given.model)
    optimizer = gw.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9),
        model.named_parameters(),
        compression=given.codec,
    )
    rank = int(os.environ.get("GRADWIRE_RANK", "0"))
    generator = torch.Generator().manual_seed(1 + rank)
    began = time.perf_counter()
    for _ in range(given.steps):
        optimizer.zero_grad()
        model(batch(given.model, generator)).square().mean().backward()
        optimizer.step()
    optimizer.synchronize()
    print(f"{(time.perf_counter() - began) / given.steps:.4f} s a step", flush=True)


if __name__ == "__main__":
    main()
