"""Push, pull and sum NumPy arrays through parameter servers, 2 bits an element, without a framework.

Start: gradwire run -n 2 -s 1 python key_value_store.py
"""

import gradwire as gw
import numpy as np

kv = gw.kv.create("dist_sync")
kv.set_gradient_compression({"type": "2bit", "threshold": "auto"})
weights = np.zeros((784, 10), np.float32)
kv.init("weights", weights)

target = np.random.default_rng(0).normal(size=weights.shape).astype(np.float32)
target += 0.05 * np.random.default_rng(1 + kv.rank).normal(size=weights.shape).astype(np.float32)
for step in range(30):
    gradient = weights - target  # the worker's loss is half the squared distance from its target
    total = np.empty_like(gradient)
    kv.pushpull("weights", gradient, out=total)
    weights -= 0.1 * total / kv.num_workers
    if step % 10 == 9:
        loss = float(np.mean((weights - target) ** 2)) / 2
        print(f"rank {kv.rank} step {step + 1}: loss {loss:.3f}")
