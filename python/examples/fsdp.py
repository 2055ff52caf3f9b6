"""FSDP2 with its reduce-scatter compressed to 8 bits an element.

Start: torchrun --nproc-per-node 2 fsdp.py
Or: gradwire run -n 2 python fsdp.py
"""

import gradwire.torch
import torch
import torch.distributed as dist
import toy_images
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = toy_images.network()  # fully_shard() does not broadcast: every rank makes the same weights
fully_shard(model[1])
fully_shard(model)
gradwire.torch.compress_reduce_scatter(model, codec="int8")

toy_images.train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), dist.get_rank())
dist.destroy_process_group()
