"""One worker of MXNet's 2-bit acceptance; see acceptance_test.py.   acceptance_worker.py push|pushpull"""

from __future__ import annotations

import json
import sys

import gradwire
import numpy as np
from numpy.typing import NDArray

SHAPES = {"3": (2, 3), "4": (17,), "99": (1211, 1211)}
RATE, THRESHOLD = 2.0, np.float32(0.5)


class Pusher:
    def __init__(self, store: gradwire.kv.KVStore, form: str) -> None:
        self.store = store
        self.form = form

    def __call__(self, grads: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
        out = {key: np.full(grad.shape, np.nan, np.float32) for key, grad in grads.items()}
        if self.form == "push":
            self.store.push(list(grads), list(grads.values()))
            self.store.pull(list(out), out=list(out.values()))
        else:
            self.store.pushpull(list(grads), list(grads.values()), out=list(out.values()))
        return out


def constant(values: dict[str, NDArray[np.float32]]) -> float:
    """The one value that all elements of all keys have."""
    found = {float(value) for array in values.values() for value in np.unique(array)}
    assert len(found) == 1, found
    return found.pop()


def main() -> None:
    store = gradwire.kv.create("dist_sync")
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    store.init(list(SHAPES), [np.zeros(shape, np.float32) for shape in SHAPES.values()])
    ones = np.ones(SHAPES["99"], np.float32)
    store.init("one", ones)
    store.set_optimizer("test", rescale_grad=RATE)
    inits = []
    for key, shape in (("99", SHAPES["99"]), ("one", ones.shape)):  # first values are not compressed
        first = np.full(shape, np.nan, np.float32)
        store.pull(key, out=first)
        inits.append(constant({key: first}))
    push = Pusher(store, sys.argv[1])
    constants = [
        constant(push({key: np.full(shape, value, np.float32) for key, shape in SHAPES.items()}))
        for value in (0.0, 0.4, 0.1, 0.2, 0.3, 0.5)
    ]
    print(
        json.dumps(
            {
                "rank": store.rank,
                "constants": constants,
                "inits": inits,
                "random_steps_equal": random_steps(push, store.num_workers),
            }
        )
    )
    store.close()


def random_steps(push: Pusher, workers: int) -> int:
    """Seven random gradients, the same on all workers, against the rule in NumPy. Counts the steps that are equal."""
    random = np.random.default_rng(11)
    residual = {key: np.zeros(shape, np.float32) for key, shape in SHAPES.items()}
    value = {key: np.full(shape, 3 * workers, np.float32) for key, shape in SHAPES.items()}
    equal = 0
    for _ in range(7):
        grads = {key: random.random(shape, np.float32) for key, shape in SHAPES.items()}
        for key, grad in grads.items():
            residual[key] += grad
            sent = np.where(residual[key] >= THRESHOLD, THRESHOLD, np.float32(0))
            residual[key] -= sent
            value[key] += np.float32(RATE) * workers * sent
        got = push(grads)
        equal += all(np.array_equal(got[key], value[key]) for key in SHAPES)
    return equal


main()
