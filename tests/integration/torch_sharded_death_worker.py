"""A rank of torch_sharded_death_test.py, of which the last is killed before its backward pass: WAY FILE RANK RANKS."""

from __future__ import annotations

import os
import signal
import sys

import gradwire.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main(way: str, file: str, rank: int, ranks: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(file, ranks), rank=rank, world_size=ranks)
    shape, names = ((ranks // 2, 2), ("replicate", "shard")) if way == "hsdp" else ((ranks,), ("shard",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:  # backward() begins without a collective of torch's
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    compress = {"fsdp": gradwire.torch.compress_reduce_scatter, "hsdp": gradwire.torch.compress_all_reduce}[
        way
    ]
    compressed = compress(model, codec="int8")
    for step in range(3):
        loss = model(torch.ones(2, 8)).square().sum()
        if step == 2 and rank == ranks - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
    del compressed


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
