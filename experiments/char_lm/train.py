"""Trains a transformer to predict the next character, over any gradwire store, with MXNet's flags.

    python experiments/char_lm/train.py --network tiny                           (this process alone)
    gradwire run -n 4 python experiments/char_lm/train.py --kv-store allreduce --gc-type int8

The text is Debian's fortunes. An example is a window of 64 characters; the score is the validation loss in nats a
character, less is better. All else is as in experiments/fashion_mnist/train.py: the same seed gives, bit for
bit, the same result, and the record is written alike.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from networks import NETWORKS
from text import load

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training.device import choose
from training.flags import parse_arguments
from training.loop import run
from training.progress import Progress
from training.task import Task


def loss_of(model: torch.nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """Returns the mean loss in nats a character, over all characters of windows but each one's first."""
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def evaluate(model: torch.nn.Module, windows: torch.Tensor) -> float:
    model.eval()
    losses = [float(loss_of(model, part)) * len(part) for part in windows.split(256)]
    model.train()
    return sum(losses) / len(windows)


def make_task(args: argparse.Namespace, progress: Progress) -> Task:
    text = load(args.limit)
    if text.name != "fortunes":
        progress.say(f"The fortunes are not installed (apt install fortunes): training on {text.name}")
    device = choose(args.gpus)
    return Task(
        dataset=text.name,
        model=NETWORKS[args.network],
        examples=len(text.train),
        loss=lambda model, pick: loss_of(model, text.train[pick].to(device)),
        score=lambda model: evaluate(model, text.validation.to(device)),
        metric="loss",
        unit="windows",
        device=device,
    )


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line's flags, or these."""
    return parse_arguments(__doc__, NETWORKS, given, lr=0.1, batch_size=16, num_epochs=1)


if __name__ == "__main__":
    run(arguments(), make_task)
