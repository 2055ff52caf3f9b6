"""A linear model trained in NumPy through any worker, or as one of ours: the model is the same, only the wire differs.

python linear_model.py    one of ours, in the job that the environment describes
"""

from __future__ import annotations

import hashlib
import json
from typing import Protocol

import numpy as np

LEARNING_RATE = np.float32(0.05)
STEPS = 8
INPUTS, OUTPUTS, SAMPLES = 14_001, 5, 24  # the weight is cut into partitions, the last of them short


class Worker(Protocol):
    def init(self, values: dict[str, np.ndarray]) -> None: ...
    def pushpull(self, key: str, grad: np.ndarray) -> np.ndarray: ...
    def barrier(self) -> None: ...


def train(worker: Worker, rank: int) -> dict[str, object]:
    """Least squares on this rank's samples; returns hashes of all sums and of the weights."""
    random = np.random.default_rng(100 + rank)
    x = random.integers(-3, 4, (SAMPLES, INPUTS)).astype(np.float64)
    y = random.integers(-9, 10, (SAMPLES, OUTPUTS)).astype(np.float64)
    weights = {"weight": np.zeros((INPUTS, OUTPUTS), np.float32), "bias": np.zeros(OUTPUTS, np.float32)}
    worker.init(weights)
    worker.barrier()
    sums = hashlib.sha256()
    for _ in range(STEPS):
        error = x @ weights["weight"].astype(np.float64) + weights["bias"] - y
        grads = {
            "weight": (x.T @ error / SAMPLES).astype(np.float32),
            "bias": error.mean(axis=0).astype(np.float32),
        }
        for key, grad in grads.items():
            total = worker.pushpull(key, grad)
            sums.update(total.tobytes())
            weights[key] -= LEARNING_RATE * total
    moved = int(sum(np.count_nonzero(weight) for weight in weights.values()))
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in weights.values()))
    return {"rank": rank, "weights": digest.hexdigest(), "sums": sums.hexdigest(), "moved": moved}


class OurWorker:
    """The same three verbs by gradwire's own store."""

    def __init__(self) -> None:
        import gradwire

        self.store = gradwire.kv.create("dist_sync")
        self.store.set_gradient_compression({"type": "2bit", "threshold": 0.5, "reply": "exact"})

    def init(self, values: dict[str, np.ndarray]) -> None:
        self.store.init(list(values), list(values.values()))

    def pushpull(self, key: str, grad: np.ndarray) -> np.ndarray:
        total = np.empty_like(grad)
        self.store.pushpull(key, grad, out=total)
        return total

    def barrier(self) -> None:
        self.store.barrier()


if __name__ == "__main__":
    ours = OurWorker()
    print(json.dumps(train(ours, ours.store.rank)))
    ours.store.close()
