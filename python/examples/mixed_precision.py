"""Mixed precision: a loss scale, clipped gradients, a codec warm-up, and other codecs for some parameters.

Start: gradwire run -n 2 python mixed_precision.py
Or: torchrun --nproc-per-node 2 mixed_precision.py
"""

import gradwire as gw
import gradwire.torch
import torch

store = gw.kv.create("allreduce")
generator = torch.Generator().manual_seed(store.rank)
words = torch.randint(1000, (128, 16), generator=generator)
labels = words[:, 0] % 2

model = torch.nn.Sequential(
    torch.nn.Embedding(1000, 32),
    torch.nn.Flatten(),
    torch.nn.Linear(512, 64),
    torch.nn.ReLU(),
    torch.nn.Linear(64, 2),
)
device = "cuda" if torch.cuda.is_available() else "cpu"
model.to(device)
scaler = torch.amp.GradScaler(device)
optimizer = gw.torch.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=1e-3),
    model.named_parameters(),
    compression="int8",  # Adam loses accuracy with 2bit, which does not keep what Adam divides by
    codecs={"0.*": "fp16"},  # the embedding; biases and norms are never compressed by default
    warm_up=[("none", 5), ("fp16", 5)],
    max_grad_norm=1.0,
    grad_scaler=scaler,
)
gw.torch.broadcast_parameters(model.state_dict())

for step in range(30):
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(words.to(device)).float(), labels.to(device))
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # if any rank has an infinity, no rank takes the step
    scaler.update()
    if step % 10 == 9:
        print(f"rank {store.rank} step {step + 1}: loss {loss.item():.3f}")
