"""DistributedOptimizer around any optimizer: gradients are compressed and averaged while backward() runs.

Start: gradwire run -n 2 python distributed_optimizer.py
Or: torchrun --nproc-per-node 2 distributed_optimizer.py
"""

import gradwire as gw
import gradwire.torch
import torch
import toy_images

store = gw.kv.create("allreduce")
model = toy_images.network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = gw.torch.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression="2bit", momentum_correction="auto"
)
gw.torch.broadcast_parameters(model.state_dict())

toy_images.train(model, optimizer, store.rank)  # after backward(), p.grad is the workers' mean
