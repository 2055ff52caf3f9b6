"""One of two ranks that train a transformer of 124 million parameters; rank 0 prints a line `STEP {...}`.

    python experiments/gpu/transformer.py --rank 0 --master 10.77.0.1 --interface eth0 --arm hook/int8

An arm is WAY/CODEC. Ways: ddp-gloo and ddp-nccl (torch's own exchange, with its fp16 hook for the codec fp16), hook
(DDP with gradwire's hook, on gloo), optimizer (DistributedOptimizer).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradwire.torch as gt
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn import functional

LONGEST_SECONDS = 22.0
WARM_UP = 3


@dataclass(frozen=True)
class Size:
    width: int
    layers: int
    heads: int
    vocabulary: int
    context: int
    batch: int


SIZES = {
    "124m": Size(width=768, layers=12, heads=12, vocabulary=50_304, context=512, batch=8),
    "tiny": Size(width=64, layers=2, heads=2, vocabulary=500, context=32, batch=4),
}


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.qkv, self.out = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    """GPT-2's shape, with its input embedding as output layer."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.places = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, 0, 0.02)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(words) + self.places.weight
        for block in self.blocks:
            hidden = block(hidden)
        return self.norm(hidden) @ self.tokens.weight.T


def prepare(way: str, codec: str, model: nn.Module) -> tuple[nn.Module, Any]:
    """Returns the model to call and the optimizer."""
    optimizer: Any = torch.optim.AdamW(model.parameters(), 3e-4)
    if way == "optimizer":
        optimizer = gt.DistributedOptimizer(optimizer, model.named_parameters(), compression=codec)
        gt.broadcast_parameters(model.state_dict())
        return model, optimizer
    dist.init_process_group("nccl" if way == "ddp-nccl" else "gloo")
    wrapped = nn.parallel.DistributedDataParallel(model)
    if way == "hook":
        wrapped.register_comm_hook(gt.HookState(codec=codec), gt.ddp_hook)
    elif codec == "fp16":
        wrapped.register_comm_hook(None, fp16_compress_hook)
    elif codec != "none":
        raise ValueError(f"{way} has no codec {codec!r}: expected none or fp16")
    return wrapped, optimizer


def sent_bytes(interface: str) -> int:
    """Returns what an interface of this process's network namespace has sent, headers included."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[8])
    raise ValueError(f"there is no interface {interface!r} here")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--master", required=True, help="address of rank 0")
    parser.add_argument("--port", type=int, default=29_511)
    parser.add_argument("--interface", required=True)
    parser.add_argument("--arm", required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--size", choices=list(SIZES), default="124m")
    parser.add_argument("--steps", type=int, default=14)
    given = parser.parse_args()
    os.environ.update(RANK=str(given.rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR=given.master, MASTER_PORT=str(given.port))
    os.environ.update(GLOO_SOCKET_IFNAME=given.interface, NCCL_SOCKET_IFNAME=given.interface)
    os.environ["NCCL_HOSTID"] = f"rank-{given.rank}"  # or NCCL refuses two ranks with one GPU
    device, size = torch.device(given.device), SIZES[given.size]
    torch.manual_seed(0)
    way, codec = given.arm.split("/")
    model = Transformer(size).to(device)
    wrapped, optimizer = prepare(way, codec, model)
    random = torch.Generator().manual_seed(given.rank)
    took: list[float] = []
    while len(took) < given.steps and sum(took) < LONGEST_SECONDS:
        if len(took) <= WARM_UP:
            before = sent_bytes(given.interface)
        words = torch.randint(0, size.vocabulary, (size.batch, size.context), generator=random).to(device)
        targets = (words * 7 + 3) % size.vocabulary
        began = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = functional.cross_entropy(wrapped(words).flatten(0, 1).float(), targets.flatten())
        loss.backward()
        optimizer.step()
        last = loss.item()  # waits for the device
        took.append(time.perf_counter() - began)
    if given.rank == 0:
        steady = max(len(took) - WARM_UP, 1)
        record = {
            "arm": given.arm,
            "parameters": sum(p.numel() for p in model.parameters()),
            "ms_a_step": round(statistics.median(took[WARM_UP:] or took) * 1e3, 1),
            "mb_sent_a_step": round((sent_bytes(given.interface) - before) / steady / 1e6, 1),
            "steps": len(took),
            "loss": round(last, 3),
            "peak_memory_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
        }
        print("STEP", json.dumps(record), flush=True)
    if way == "optimizer":
        optimizer.close()
    else:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
