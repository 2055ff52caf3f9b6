"""The servers' optimizers beside what MXNet 1.9.1's made of the same gradients (tests/golden/README.md).

Where MXNet's formula is not ours, which is torch's, there is no case: its nag decays the momentum by the weight that it
has just moved (its kernel writes the weight first), and its adagrad adds epsilon under the root and decays the weight
behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradwire
import numpy as np
import pytest
from gradwire.kv import KVStore

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "mxnet191_optimizers.npz")
ABOUT: dict[str, Any] = json.loads(GOLDEN["about"].tobytes())
OURS: dict[str, tuple[str, dict[str, float]]] = {  # what is called otherwise
    "sgd": ("mxnet_sgd", {}),
    "nag": ("mxnet_sgd", {"nesterov": 1}),
}
NAMES = {"eps": "epsilon"}

# Largest distances, in units of the last place of the largest value that a weight or a step of it has had so far. 4:
# MXNet writes the same formula with its products in another order.
ULPS = {
    "test": 0,
    "sgd": 0,
    "sgd with momentum": 0,
    "adagrad": 0,
    "adagrad clipped": 0,
    "sgd decayed and clipped": 4,
    "sgd with momentum, decayed and clipped": 4,
    "nag": 4,
    "nag clipped": 4,
}
# Of the way that a weight has gone so far. MXNet takes 1 - beta2 in float32, where ours, as torch, rounds it once:
# 1 - 0.999f is 1.3e-5 off, and its root, by which a step is divided, half of that. It also adds epsilon before the bias
# is corrected: 3e-6 of the smallest gradient.
ADAMS_PART_OF_THE_WAY = 1e-5


@pytest.fixture
def kv() -> Iterator[KVStore]:
    store = gradwire.kv.create("local")
    yield store
    store.close()


def weights(kv: KVStore, name: str, parameters: dict[str, float]) -> Any:
    """What our server makes of MXNet's weight and gradients, (steps, elements)."""
    ours, more = OURS.get(name, (name, {}))
    renamed = {NAMES.get(key, key): value for key, value in parameters.items()} | more
    rates = ABOUT["learning_rates"]
    kv.init("w", GOLDEN["weight"])
    kv.set_optimizer(ours, **renamed, **({} if name == "test" else {"learning_rate": rates[0]}))
    rows = []
    for step, gradient in enumerate(GOLDEN["gradients"]):
        if step > 0 and rates[step] != rates[step - 1] and name != "test":
            kv.set_learning_rate(rates[step])
        out = np.empty_like(gradient)
        kv.pushpull("w", gradient.copy(), out=out)
        rows.append(out)
    return np.stack(rows)


@pytest.mark.parametrize("case", ABOUT["cases"])
def test_weights_are_mxnets(kv: KVStore, case: str) -> None:
    theirs = GOLDEN[f"weights {case}"]
    distance = np.abs(weights(kv, *ABOUT["cases"][case]) - theirs)
    before = np.concatenate([GOLDEN["weight"][None], theirs[:-1]])
    moves = np.abs(theirs - before)
    if case.startswith("adam"):
        bound = ADAMS_PART_OF_THE_WAY * np.cumsum(moves, axis=0)
    else:
        largest = np.maximum.accumulate(np.maximum.reduce([np.abs(theirs), np.abs(before), moves]))
        bound = ULPS[case] * np.spacing(largest)
    assert np.argwhere(distance > bound).tolist() == []  # steps and elements
