"""A linear model trained in NumPy through any worker, or as one of ours: the model is the same, only the wire differs.

python linear_model.py [NAME=VALUE...]    one of ours, in the job that the environment describes; OPTIONS has the names
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from gradwire.kv import KVStore

OPTIONS: dict[str, str] = {
    "store": "dist_sync",  # or inproc: all ranks are threads of this process
    "workers": "1",  # of inproc
    "codec": "2bit:threshold=0.5,reply=exact",
    "rate": "0.05",  # learning rate
    "delays": "",  # a seed: every rank comes late to every push, by a time of its own
    "steps": "8",
}
LONGEST_DELAY = 0.03  # seconds
STEPS = int(OPTIONS["steps"])
INPUTS, OUTPUTS, SAMPLES = 14_001, 5, 24  # the weight is cut into partitions, the last of them short


class Worker(Protocol):
    def init(self, values: dict[str, np.ndarray]) -> None: ...
    def pushpull(self, key: str, grad: np.ndarray) -> np.ndarray: ...
    def barrier(self) -> None: ...


def train(
    worker: Worker, rank: int, rate: float = float(OPTIONS["rate"]), steps: int = STEPS
) -> dict[str, object]:
    """Least squares on this rank's samples; returns hashes of all sums and of the weights."""
    random = np.random.default_rng(100 + rank)
    x = random.integers(-3, 4, (SAMPLES, INPUTS)).astype(np.float64)
    y = random.integers(-9, 10, (SAMPLES, OUTPUTS)).astype(np.float64)
    weights = {"weight": np.zeros((INPUTS, OUTPUTS), np.float32), "bias": np.zeros(OUTPUTS, np.float32)}
    worker.init(weights)
    worker.barrier()
    sums = hashlib.sha256()
    for _ in range(steps):
        error = x @ weights["weight"].astype(np.float64) + weights["bias"] - y
        grads = {
            "weight": (x.T @ error / SAMPLES).astype(np.float32),
            "bias": error.mean(axis=0).astype(np.float32),
        }
        for key, grad in grads.items():
            total = worker.pushpull(key, grad)
            sums.update(total.tobytes())
            weights[key] -= np.float32(rate) * total
    moved = int(sum(np.count_nonzero(weight) for weight in weights.values()))
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in weights.values()))
    return {"rank": rank, "weights": digest.hexdigest(), "sums": sums.hexdigest(), "moved": moved}


class OurWorker:
    """The same three verbs by gradwire's own store; late by chance before each push if delays has a seed."""

    def __init__(self, store: KVStore, codec: str, delays: str = "") -> None:
        self.store = store
        self.store.set_gradient_compression(codec)
        self.late = np.random.default_rng([int(delays), store.rank]) if delays else None

    def init(self, values: dict[str, np.ndarray]) -> None:
        self.store.init(list(values), list(values.values()))

    def pushpull(self, key: str, grad: np.ndarray) -> np.ndarray:
        if self.late is not None:
            time.sleep(self.late.uniform(0, LONGEST_DELAY))
        total = np.empty_like(grad)
        self.store.pushpull(key, grad, out=total)
        return total

    def barrier(self) -> None:
        self.store.barrier()


def train_and_tell(store: KVStore, options: dict[str, str]) -> None:
    worker = OurWorker(store, options["codec"], options["delays"])
    record = train(worker, store.rank, float(options["rate"]), int(options["steps"]))
    # In one piece: what print() writes in two may come out of mpirun with another rank's line in between.
    sys.stdout.write(json.dumps(record) + "\n")
    store.close()


def train_as_threads(options: dict[str, str]) -> None:
    """Every rank is a thread of this process, and its frames stay in memory."""
    from gradwire import _core, kv
    from gradwire.settings import definitions as settings

    values = settings.read()
    network = _core.InprocNetwork(int(options["workers"]))

    def join_and_train(rank: int) -> None:
        store = kv.KVStore("allreduce", network.connect(rank, codec_threads=1), values)
        train_and_tell(store, options)

    ranks = [threading.Thread(target=join_and_train, args=(rank,)) for rank in range(int(options["workers"]))]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()


def main(words: list[str]) -> None:
    options = OPTIONS | dict(word.split("=", 1) for word in words)
    if options["store"] == "inproc":
        return train_as_threads(options)
    from gradwire import kv

    return train_and_tell(kv.create(options["store"]), options)


if __name__ == "__main__":
    main(sys.argv[1:])
