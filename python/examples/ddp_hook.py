"""DistributedDataParallel as it is, its buckets compressed to eight bits an element.

Start: torchrun --nproc-per-node 2 ddp_hook.py
Or: gradwire run -n 2 python ddp_hook.py
"""

import gradwire.torch
import torch
import torch.distributed as dist
import toy_images
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(toy_images.network())
# int8, not 2bit: with AdamW, which divides by what it has seen, 2bit loses accuracy.
model.register_comm_hook(gradwire.torch.HookState(codec="int8"), gradwire.torch.ddp_hook)

toy_images.train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), dist.get_rank())
dist.destroy_process_group()
