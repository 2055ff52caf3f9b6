"""FSDP2 with its reduce-scatter compressed to eight bits an element.

Start: torchrun --nproc-per-node 2 fsdp.py
"""

import gradwire.torch
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
generator = torch.Generator().manual_seed(dist.get_rank())
images = torch.randn(256, 1, 28, 28, generator=generator)
labels = (images.mean((1, 2, 3)) > 0).long()

torch.manual_seed(0)  # fully_shard() does not broadcast: every rank makes the same weights
model = torch.nn.Sequential(
    torch.nn.Flatten(), torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
)
fully_shard(model[1])
fully_shard(model)
gradwire.torch.compress_reduce_scatter(model, codec="int8")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for step in range(30):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"rank {dist.get_rank()} step {step + 1}: loss {loss.item():.3f}")
dist.destroy_process_group()
