"""The jobs whose checkpoints tests/golden keeps, a folder a release, so that later releases can be asked to read them.

    cd tests && python -m python.kept_checkpoints golden/checkpoints_0_2_0     # writes those of today's code

Each job has two ranks, which are threads. Gradients are made of whole numbers, so every machine makes the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import numpy as np
import torch
from gradwire.kv import KVStore
from python.inproc_ranks import run_ranks

RANKS = 2
SIZE = 300
SAVED_AT = 3  # steps
EXTRA = {"step": SAVED_AT, "name": "kept", "order": [2, 0, 1], "rates": np.array([0.5, 0.25])}


def gradient(rank: int, step: int) -> Any:
    numbers = np.arange(SIZE, dtype=np.int64) * 7919 + step * 104_729 + rank * 31
    return ((numbers % 2001 - 1000) / 1000).astype(np.float32)


def sums(store: KVStore, steps: range) -> list[Any]:
    """What a rank gets in some steps, of a key that is compressed: residuals matter from step to step."""
    results = []
    for step in steps:
        out = np.empty(SIZE, np.float32)
        store.pushpull("w", gradient(store.rank, step), out=out)
        results.append(out)
    return results


def summing(store: KVStore) -> None:
    """Makes a rank of the first job ready: sums of what two bits carry."""
    store.set_gradient_compression("2bit:threshold=0.5")
    store.init("w", np.zeros(SIZE, np.float32))


def updating(store: KVStore) -> None:
    """Makes a rank of the second job ready: servers with an optimizer that has moments."""
    store.init("w", np.ones(SIZE, np.float32))
    store.set_optimizer("adam", learning_rate=0.125)


class Training:
    """A rank of the third job: a model whose gradients are set by hand, and torch's optimizer, wrapped."""

    def __init__(self, store: KVStore) -> None:
        self.rank = store.rank
        self.model = torch.nn.Linear(SIZE, 1, bias=False)
        with torch.no_grad():
            self.model.weight.fill_(1)
        inner = torch.optim.SGD(self.model.parameters(), lr=0.125, momentum=0.5)
        self.optimizer = gw.torch.DistributedOptimizer(
            inner, self.model.named_parameters(), store=store, compression="2bit:threshold=0.5"
        )

    def steps(self, steps: range) -> Any:
        """Returns the weights after some steps."""
        for step in steps:
            self.model.weight.grad = torch.from_numpy(gradient(self.rank, step)).reshape(1, SIZE)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self.model.weight.detach().numpy().copy()


def of_ranks(body: Callable[[KVStore], Any]) -> list[Any]:
    """Returns what body(store) has returned on each rank of a job."""
    results: dict[int, Any] = {}

    def run(store: KVStore) -> None:
        results[store.rank] = body(store)
        store.barrier()

    run_ranks(RANKS, run)
    return [results[rank] for rank in range(RANKS)]


def save(folder: Path) -> None:
    """Writes all checkpoints below a folder."""

    def sums_and_saves(store: KVStore) -> None:
        summing(store)
        sums(store, range(SAVED_AT))
        store.save_checkpoint(folder / "sums", b"mine")

    def updates_and_saves(store: KVStore) -> None:
        updating(store)
        sums(store, range(SAVED_AT))
        store.save_checkpoint(folder / "updates")
        if store.rank == 0:
            store.save_optimizer_states(folder / "updates.states", True)

    def trains_and_saves(store: KVStore) -> None:
        training = Training(store)
        training.steps(range(SAVED_AT))
        gw.torch.save_checkpoint(folder / "training", training.model, training.optimizer, EXTRA)
        training.optimizer.close()

    folder.mkdir(parents=True)
    for body in (sums_and_saves, updates_and_saves, trains_and_saves):
        of_ranks(body)


if __name__ == "__main__":
    save(Path(sys.argv[1]))
