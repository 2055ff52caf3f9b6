"""One rank of a small network's training through one of the package's front ends; rank 0 prints a line `TRAINED {...}`.

gradwire run -n 2 python experiments/gpu/front_ends.py --front-end ddp --codec int8 --device cuda --backend gloo
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from typing import Any

import gradwire
import gradwire.torch as gt
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

FRONT_ENDS = ["optimizer", "overlap", "amp", "ddp", "ddp_hosts", "fsdp2", "fsdp2_weights"]
IN_A_GROUP = ("ddp", "ddp_hosts", "fsdp2", "fsdp2_weights")
BATCH = 64
KEPT_BATCHES = 50
WARM_UP = 10


class Net(nn.Module):
    """LeNet's shape, a little wider: 356 000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(
                nn.Conv2d(1, 16, 5),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Conv2d(16, 32, 5),
                nn.ReLU(),
                nn.MaxPool2d(2),
            )
        )
        self.first, self.second, self.head = nn.Linear(512, 512), nn.Linear(512, 128), nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.first(self.features(images).flatten(1)))
        return self.head(functional.relu(self.second(hidden)))


def batches(rank: int, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Noisy copies of ten pictures, other ones on each rank."""
    pictures = torch.randn(10, 1, 28, 28, generator=torch.Generator().manual_seed(3))
    random = torch.Generator().manual_seed(100 + rank)
    made = []
    for _ in range(KEPT_BATCHES):
        labels = torch.randint(0, 10, (BATCH,), generator=random)
        images = pictures[labels] + 1.5 * torch.randn(BATCH, 1, 28, 28, generator=random)
        made.append((images.to(device), labels.to(device)))
    return made


class Training:
    """A model and an optimizer behind a front end. codec "plain": torch alone."""

    def __init__(self, front_end: str, codec: str, store: str, device: torch.device) -> None:
        torch.manual_seed(7)
        self.device = device
        self.scaler = torch.amp.GradScaler(device.type) if front_end == "amp" else None
        model = Net().to(device)
        if front_end.startswith("ddp"):
            self.model: Any = nn.parallel.DistributedDataParallel(model)
            if codec != "plain":
                hosts = {"local_group": 2} if front_end == "ddp_hosts" else {}
                self.model.register_comm_hook(gt.HookState(codec=codec, **hosts), gt.ddp_hook)
            self.optimizer: Any = self._sgd(self.model)
        elif front_end in IN_A_GROUP:
            self.model = model
            for part in (model.first, model.second, model):
                fully_shard(part)
            if codec != "plain":
                self.kept = gt.compress_reduce_scatter(model, codec=codec)
            if front_end == "fsdp2_weights":
                gt.compress_all_gather(model, codec=codec)
            self.optimizer = self._sgd(model)
        else:
            self.model = model
            options: dict[str, Any] = {"store": gradwire.kv.create(store)}
            options |= {"overlap_step": True} if front_end == "overlap" else {}
            options |= {"grad_scaler": self.scaler} if self.scaler else {}
            self.optimizer = gt.DistributedOptimizer(
                self._sgd(model), model.named_parameters(), compression=codec, **options
            )
            gt.broadcast_parameters(model.state_dict())

    @staticmethod
    def _sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        half = torch.float16 if self.device.type == "cuda" else torch.bfloat16
        context = torch.autocast(self.device.type, dtype=half) if self.scaler else contextlib.nullcontext()
        with context:
            loss = functional.cross_entropy(self.model(images), labels)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--front-end", choices=FRONT_ENDS, required=True)
    parser.add_argument("--store", default="allreduce", help="of the wrapped optimizers")
    parser.add_argument("--codec", default="none", help="plain: torch's own exchange (ddp, fsdp2)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument(
        "--backend", choices=["gloo", "nccl"], default="gloo", help="of ddp's and fsdp2's group"
    )
    parser.add_argument("--steps", type=int, default=150)
    given = parser.parse_args()
    device = torch.device(given.device)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if given.front_end in IN_A_GROUP:
        if given.backend == "nccl":
            os.environ["NCCL_HOSTID"] = f"rank-{rank}"  # or NCCL refuses two ranks with one GPU
        dist.init_process_group(given.backend)
    training = Training(given.front_end, given.codec, given.store, device)
    data = batches(rank, device)
    losses, began = [], time.perf_counter()
    for number in range(given.steps):
        if number == WARM_UP:
            began = time.perf_counter()
        losses.append(training.step(*data[number % KEPT_BATCHES]))
    last = float(torch.stack(losses[-10:]).mean())  # waits for the device
    seconds = time.perf_counter() - began
    if rank == 0:
        record = vars(given) | {
            "world": world,
            "first_loss": round(float(losses[0]), 4),
            "loss": round(last, 4),
            "ms_a_step": round(seconds / (given.steps - WARM_UP) * 1e3, 2),
        }
        print("TRAINED", json.dumps(record), flush=True)
    if given.front_end in IN_A_GROUP:
        dist.destroy_process_group()
    else:
        training.optimizer.close()


if __name__ == "__main__":
    main()
