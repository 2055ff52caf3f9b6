"""One job of run.py: trains with FSDP2 and AdamW, and writes a line for each seed.

torchrun --nproc-per-node 2 train.py TASK ARM SEEDS STEPS FILE

ARM is what is compressed: "plain", or "gradients=int8", "weights=int8", or both, with a plus sign between.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import gradwire.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / name) for name in ("adamw", "")]

import tasks  # noqa: E402
from training.order import batches  # noqa: E402

_RISE = 20  # steps in which the learning rate rises


def sharded(model: nn.Module, arm: str) -> nn.Module:
    """Shards each layer of a transformer by itself, and the rest as one."""
    for layer in model.blocks if hasattr(model, "blocks") else model.layers.layers:
        fully_shard(layer)
    fully_shard(model)
    for word in arm.split("+") if arm != "plain" else []:
        what, _, codec = word.partition("=")
        compress = {
            "gradients": gradwire.torch.compress_reduce_scatter,
            "weights": gradwire.torch.compress_all_gather,
        }[what]
        compress(model, codec=codec)
    return model


def train(task: tasks.Task, arm: str, seed: int, steps: int) -> dict[str, float]:
    """Returns the loss, in nats, on what the model has not seen: with the weights that ranks gather, and with their
    own, put together.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = sharded(task.network(), arm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.lr)
    model.train()
    step, epoch = 0, 0
    while step < steps:
        for pick in batches(task.examples, epoch, seed, rank, ranks, task.batch_size):
            if step == steps:
                break
            for group in optimizer.param_groups:
                decay = (1 + math.cos(math.pi * step / steps)) / 2
                group["lr"] = task.lr * min(1.0, (step + 1) / _RISE) * decay
            optimizer.zero_grad()
            task.loss(model, pick).backward()
            optimizer.step()
            step += 1
        epoch += 1
    gathered, _ = task.score(model)
    whole = {name: each.full_tensor() for name, each in model.state_dict().items()}
    exact = task.network()
    exact.load_state_dict(whole)
    return {"loss": gathered, "loss_exact": task.score(exact)[0]}


def main() -> None:
    name, arm, seeds, steps, file = sys.argv[1:]
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    dist.init_process_group("gloo")
    task = tasks.load(name)
    for seed in map(int, seeds.split(",")):
        found = train(task, arm, seed, int(steps))
        if dist.get_rank() == 0:
            with Path(file).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"seed": seed, **found}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
