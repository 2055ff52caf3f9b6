"""Trains a network on Fashion-MNIST over any gradwire store, with MXNet's flags.

    python experiments/fashion_mnist/train.py --network mlp                      (this process alone)
    gradwire run -n 2 -s 2 python experiments/fashion_mnist/train.py \\
        --network lenet --kv-store dist_sync --gc-type 2bit                      (2 workers, 2 servers, 2-bit
        gradients)

Every worker trains on its own share of the images; the batch size is per worker. The same seed gives the same
first weights, the same order of images and, bit for bit, the same result. Rank 0 reports; with --json, or
where GRADWIRE_RESULT names a file (as `gradwire ab` does), it writes a record.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from dataset import Dataset, load
from networks import NETWORKS

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training.flags import parse_arguments
from training.loop import run
from training.progress import Progress
from training.task import Task


@torch.no_grad()
def evaluate(model: torch.nn.Module, data: Dataset) -> float:
    """Returns the fraction of test images that the model names rightly."""
    model.eval()
    hits = sum(
        int((model(images).argmax(1) == labels).sum())
        for images, labels in zip(data.test_images.split(1000), data.test_labels.split(1000), strict=True)
    )
    model.train()
    return hits / len(data.test_labels)


def make_task(args: argparse.Namespace, progress: Progress) -> Task:
    data = load(args.limit)
    if data.name != "fashion-mnist":
        progress.say(
            f"Fashion-MNIST is not installed (apt install dataset-fashion-mnist): training on {data.name}"
        )
    return Task(
        dataset=data.name,
        model=lambda: NETWORKS[args.network]().to(memory_format=torch.channels_last),
        examples=len(data.train_labels),
        loss=lambda model, pick: F.cross_entropy(model(data.train_images[pick]), data.train_labels[pick]),
        score=lambda model: evaluate(model, data),
    )


if __name__ == "__main__":
    run(parse_arguments(__doc__, NETWORKS), make_task)
