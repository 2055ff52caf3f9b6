"""DistributedDataParallel as it is, its buckets compressed to two bits an element.

Start: torchrun --nproc-per-node 2 ddp_hook.py
"""

import gradwire.torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
generator = torch.Generator().manual_seed(dist.get_rank())
images = torch.randn(256, 1, 28, 28, generator=generator)
labels = (images.mean((1, 2, 3)) > 0).long()

model = torch.nn.Sequential(
    torch.nn.Flatten(), torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
)
model = DistributedDataParallel(model)
model.register_comm_hook(gradwire.torch.HookState(codec="2bit"), gradwire.torch.ddp_hook)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for step in range(30):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"rank {dist.get_rank()} step {step + 1}: loss {loss.item():.3f}")
dist.destroy_process_group()
