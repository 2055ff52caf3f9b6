"""One worker of async_embedding_test.py.

async_embedding_worker.py CODEC none|BOUND
"""

from __future__ import annotations

import hashlib
import json
import sys
import time

import gradwire as gw
import numpy as np
import torch
from torch import nn

WORDS, WIDTH, STEPS = 200, 8, 150


def main() -> None:
    codec, bound = sys.argv[1:]
    torch.set_num_threads(1)
    store = gw.kv.create("dist_async", staleness=None if bound == "none" else int(bound))
    store.set_gradient_compression({"type": codec})
    torch.manual_seed(0)
    target, model = torch.randn(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH, sparse=True)
    first = model.weight.detach().clone()
    store.init("words", gw.RowSparse.from_dense(first))
    store.set_optimizer("sgd", learning_rate=0.25)
    drawn = np.random.default_rng(store.rank)
    losses = []
    for _ in range(STEPS):
        words = torch.from_numpy(drawn.integers(0, WORDS - 10, 16))  # nobody has the last ten
        rows = torch.empty(len(words), WIDTH)
        store.row_sparse_pull("words", rows, row_ids=words)
        with torch.no_grad():
            model.weight[words] = rows
        model.zero_grad()
        loss = (model(words) - target[words]).square().sum(1).mul(0.5).mean()
        (16 * loss).backward()  # the sum: each row's own error
        gradient = model.weight.grad
        assert gradient is not None
        gradient = gradient.coalesce()
        store.push("words", gw.RowSparse(gradient.indices()[0], gradient.values()))
        losses.append(float(loss.detach()))
        time.sleep(0.002 * store.rank)
    everything = torch.empty(WORDS, WIDTH)
    for _ in range(2):  # behind its own pushes, and behind all
        store.row_sparse_pull("words", everything, row_ids=range(WORDS))
        store.barrier()
    record = {
        "rank": store.rank,
        "first_loss": float(np.mean(losses[:5])),
        "last_loss": float(np.mean(losses[-5:])),
        "untouched": int((everything[-10:] != first[-10:]).sum()),
        "stalest": max(store.stats()["staleness"]),
        "weights": hashlib.sha256(everything.numpy().tobytes()).hexdigest(),
    }
    sys.stdout.write(json.dumps(record) + "\n")
    store.close()


main()
