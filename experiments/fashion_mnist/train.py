"""Trains a network on Fashion-MNIST over any gradwire store, with MXNet's flags.

    python experiments/fashion_mnist/train.py --network mlp                      (this process alone)
    gradwire run -n 2 -s 2 python experiments/fashion_mnist/train.py \\
        --network lenet --kv-store dist_sync --gc-type 2bit                      (2 workers, 2 servers, 2-bit
        gradients)
    gradwire run -n 2 python experiments/fashion_mnist/train.py --kv-store allreduce \\
        --network vgg16 --benchmark 1 --batch-size 2 --gc-type 2bit              (random images: speed alone)

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
from imagenet_networks import IMAGENET_NETWORKS
from networks import NETWORKS

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training.device import choose
from training.flags import parse_arguments
from training.loop import run
from training.progress import Progress
from training.task import Task

BENCHMARK_IMAGES = 320


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--benchmark",
        type=int,
        choices=(0, 1),
        default=0,
        help="1: random images in place of data, for speed alone; the only way for vgg16 and resnet50",
    )
    parser.add_argument(
        "--image-shape",
        default="3,224,224",
        metavar="C,H,W",
        help="of the random images, for vgg16 and resnet50 (default: %(default)s)",
    )


@torch.no_grad()
def evaluate(model: torch.nn.Module, data: Dataset, device: torch.device) -> float:
    """Returns the fraction of test images that the model names rightly."""
    model.eval()
    hits = sum(
        int((model(images.to(device)).argmax(1).cpu() == labels).sum())
        for images, labels in zip(data.test_images.split(1000), data.test_labels.split(1000), strict=True)
    )
    model.train()
    return hits / len(data.test_labels)


def benchmark_data(args: argparse.Namespace) -> Dataset:
    """Returns 64 random images of the shape that the network takes, over and over, the same on every rank."""
    small = args.network in NETWORKS
    shape = [1, 28, 28] if small else [int(size) for size in args.image_shape.split(",")]
    generator = torch.Generator().manual_seed(args.seed)
    images = torch.randn(64, *shape, generator=generator)
    labels = torch.randint(0, 10 if small else 1000, (64,), generator=generator)
    count = args.limit or BENCHMARK_IMAGES
    return Dataset(
        "random",
        images.repeat(-(-count // 64), 1, 1, 1)[:count],
        labels.repeat(-(-count // 64))[:count],
        images,
        labels,
    )


def make_task(args: argparse.Namespace, progress: Progress) -> Task:
    networks = NETWORKS | IMAGENET_NETWORKS
    if args.network in IMAGENET_NETWORKS and not args.benchmark:
        raise ValueError(f"train: {args.network} has no data here; give --benchmark 1 for random images")
    data = benchmark_data(args) if args.benchmark else load(args.limit)
    if data.name not in ("fashion-mnist", "random"):
        progress.say(
            f"Fashion-MNIST is not installed (apt install dataset-fashion-mnist): training on {data.name}"
        )
    device = choose(args.gpus)

    def loss(model: torch.nn.Module, pick: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(data.train_images[pick].to(device)), data.train_labels[pick].to(device))

    few = torch.arange(4)
    return Task(
        dataset=data.name,
        model=lambda: networks[args.network]().to(memory_format=torch.channels_last),
        examples=len(data.train_labels),
        loss=loss,
        score=lambda model: (
            float(loss(model, few).detach()) if args.benchmark else evaluate(model, data, device)
        ),
        metric="loss" if args.benchmark else "accuracy",
        device=device,
    )


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line's flags, or these."""
    return parse_arguments(__doc__, [*NETWORKS, *IMAGENET_NETWORKS], given, extend=add_flags)


if __name__ == "__main__":
    run(arguments(), make_task)
