"""Rank 0 fails in code of its own while the others wait for it in torch.distributed, of which gradwire knows nothing.

python -m torch.distributed.run --nproc-per-node 2 torch_crash_worker.py raise|exit
"""

from __future__ import annotations

import sys

import gradwire.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
model.register_comm_hook(gradwire.torch.HookState(codec="2bit"), gradwire.torch.ddp_hook)
for step in range(3):
    if step == 2 and dist.get_rank() == 0:
        if sys.argv[1] == "exit":
            sys.exit("no such file of images")
        raise OSError("no such file of images")
    model(torch.ones(4, 3)).sum().backward()  # begins with the buffers of rank 0
