"""Rank 0 is interrupted while it waits in backward(), catches that as a notebook does, and goes on.

python -m torch.distributed.run --nproc-per-node 2 torch_interrupted_worker.py ddp|fsdp
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import gradwire.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
layers = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
if sys.argv[1] == "ddp":
    model: nn.Module = DistributedDataParallel(layers)
    model.register_comm_hook(gradwire.torch.HookState(codec="2bit"), gradwire.torch.ddp_hook)
else:
    for layer in layers:
        fully_shard(
            layer, reshard_after_forward=False
        )  # so backward() begins without a collective of torch's
    model = fully_shard(layers, reshard_after_forward=False)
    gradwire.torch.compress_reduce_scatter(model, codec="2bit")

keyboard = dist.new_group()
for step in range(4):
    loss = model(torch.ones(2, 3)).square().sum()
    try:
        if step == 1 and rank == 0:
            timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            loss.backward()
            raise AssertionError("backward() of rank 0 came back, and rank 1 had not begun its own")
        if step == 1:
            dist.barrier(keyboard)  # begins its own when rank 0's is over
        loss.backward()
    except KeyboardInterrupt:
        print("rank 0 was interrupted", flush=True)
        dist.barrier(keyboard)
