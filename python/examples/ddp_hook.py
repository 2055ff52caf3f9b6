"""DistributedDataParallel with its buckets compressed to 8 bits an element.

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
# AdamW loses accuracy with 2bit, which does not keep the size of gradients that AdamW divides by.
model.register_comm_hook(gradwire.torch.HookState(codec="int8"), gradwire.torch.ddp_hook)

toy_images.train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), dist.get_rank())
dist.destroy_process_group()
