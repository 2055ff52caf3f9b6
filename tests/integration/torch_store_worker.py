"""A worker of any store by the verbs of MXNet's RFC 16795 alone; keeps a hash of all that comes back.

torch_store_worker.py store=torch codec=2bit:threshold=auto [integers=yes]
"""

from __future__ import annotations

import hashlib
import json
import sys

import gradwire
import numpy as np
import torch

SHAPES = {"a": (1,), "b": (130_001,), "c": (40, 30)}


def main() -> None:
    options = dict(word.split("=", 1) for word in sys.argv[1:])
    store = gradwire.kv.create(options["store"])
    store.set_gradient_compression(options["codec"])
    random = np.random.default_rng(store.rank)
    digest = hashlib.sha256()
    for name, shape in SHAPES.items():
        weight = torch.from_numpy(random.normal(size=shape).astype(np.float32))
        store.broadcast(name, weight, 1)
        digest.update(weight.numpy().tobytes())
    for _ in range(4):
        for name, shape in SHAPES.items():
            grad = torch.from_numpy(random.normal(0, 0.6, shape).astype(np.float32))
            total = torch.full(shape, float("nan"))
            store.push_pull(name, grad, total)
            digest.update(total.numpy().tobytes())
    if "integers" in options:  # which no codec is for
        counts = torch.arange(4) * 1_000_003 + store.rank
        store.push_pull("counts", counts)
        assert counts.tolist() == [1, 2_000_007, 4_000_013, 6_000_019], counts
    sys.stdout.write(json.dumps({"rank": store.rank, "hashes": digest.hexdigest()}) + "\n")
    store.close()


main()
