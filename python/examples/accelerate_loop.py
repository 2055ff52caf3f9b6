"""A training loop of Hugging Face Accelerate with gradients compressed to 8 bits an element.

Start: torchrun --nproc-per-node 2 accelerate_loop.py
Or: gradwire run -n 2 python accelerate_loop.py
"""

import torch
import toy_images
from accelerate import Accelerator
from gradwire.integrations.accelerate import compress_gradients

accelerator = Accelerator(cpu=True)
compress_gradients(accelerator, codec="int8")  # before prepare()
model = toy_images.network()
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

generator = torch.Generator().manual_seed(accelerator.process_index)
images = torch.randn(256, 1, 28, 28, generator=generator)
labels = (images.mean((1, 2, 3)) > 0).long()
for step in range(30):
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 9:
        print(f"rank {accelerator.process_index} step {step + 1}: loss {loss.item():.3f}")
accelerator.end_training()
