"""One line around any optimizer: gradients are compressed and averaged while backward() still runs.

Start: gradwire run -n 2 python distributed_optimizer.py
"""

import gradwire as gw
import gradwire.torch
import torch

store = gw.kv.create("allreduce")
generator = torch.Generator().manual_seed(store.rank)  # every worker has images of its own
images = torch.randn(256, 1, 28, 28, generator=generator)
labels = (images.mean((1, 2, 3)) > 0).long()

model = torch.nn.Sequential(
    torch.nn.Flatten(), torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = gw.torch.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression="2bit", momentum_correction="auto"
)
gw.torch.broadcast_parameters(model.state_dict())

for step in range(30):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()  # p.grad is the workers' mean now
    optimizer.step()
    if step % 10 == 9:
        print(f"rank {store.rank} step {step + 1}: loss {loss.item():.3f}")
