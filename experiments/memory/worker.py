"""One arm of run.py, on each rank: a few steps of training, and how much memory they took.

python worker.py FRONT_END CODEC MILLIONS

FRONT_END is "ddp", "optimizer" or "fsdp2", or one of them and "bfloat16", the dtype of the model: "ddp bfloat16".
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import torch
import torch.distributed as dist
from gradwire.bench.rounds import ResidentMemory
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 4  # with agreed scales the first sends float32
WIDTH = 1024  # a layer is a million parameters


class Network(nn.Module):
    """Layers side by side, so that all gradients are of one size."""

    def __init__(self, millions: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(millions))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([layer(x).square().mean() for layer in self.layers]).sum()


def prepared(front_end: str, codec: str, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    """What the script trains, as its front end has it."""
    if front_end == "ddp":
        model = DistributedDataParallel(model)
        if codec != "plain":
            model.register_comm_hook(gw.torch.HookState(codec=codec), gw.torch.ddp_hook)
    elif front_end == "fsdp2":
        for layer in model.layers:  # type: ignore[union-attr]
            fully_shard(layer)
        fully_shard(model)
        if codec != "plain":
            gw.torch.compress_reduce_scatter(model, codec=codec)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    if front_end == "optimizer" and codec != "plain":
        optimizer = gw.torch.DistributedOptimizer(optimizer, model.named_parameters(), compression=codec)
    return model, optimizer


def peak_of_servers() -> int:
    """The most memory that a server of this job has had, in bytes, or its scheduler, the same program; 0: neither."""
    found = [0]
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:  # it has ended
            continue
        if fields["Name"].strip() == "gradwire-server" and int(fields["PPid"]) == os.getppid():
            found.append(1024 * int(fields["VmHWM"].split()[0]))
    return max(found)


def main(front_end: str, codec: str, millions: int) -> None:
    torch.set_num_threads(1)
    front_end, _, in_bfloat16 = front_end.partition(" ")
    torch.set_default_dtype(torch.bfloat16 if in_bfloat16 else torch.float32)
    if front_end != "optimizer":
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    else:
        rank = gw.torch.default_store().rank
    (torch.ones(1, requires_grad=True) * 2).backward()  # what autograd takes is not the model's
    memory = ResidentMemory()
    torch.manual_seed(0)
    model, optimizer = prepared(front_end, codec, Network(millions))
    # With a gradient of its own, or FSDP2 would reduce all layers at the end of backward().
    batch = torch.randn(1, WIDTH, requires_grad=True)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        model(batch).backward()
        optimizer.step()
    found: dict[str, Any] = {"worker": memory.peak_bytes(), "server": peak_of_servers()}
    if rank == 0:
        print(json.dumps(found), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
