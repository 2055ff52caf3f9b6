"""A worker of a job whose servers update the weights, and whose rank 0 saves what their optimizer remembers.

optimizer_states_worker.py folder=F store=dist_sync [resume=1]

Without resume: STEPS steps, after which rank 0 alone saves while the others go on, and STEPS more. With it: the latter,
from the weights and states in the folder.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import gradwire
import numpy as np

STEPS = 4
SHAPES = {"w": (700, 300), "b": (7,)}  # the first is cut over all servers


def pulled(kv: gradwire.kv.KVStore) -> dict[str, np.ndarray]:
    weights = {key: np.empty(shape, np.float32) for key, shape in SHAPES.items()}
    kv.pull(list(weights), out=list(weights.values()))
    return weights


def train(kv: gradwire.kv.KVStore, first: int, end: int) -> None:
    for step in range(first, end):
        random = np.random.default_rng(10 * step + kv.rank)
        for key, shape in SHAPES.items():
            kv.push(key, random.normal(size=shape).astype(np.float32))


def main() -> None:
    options = dict(word.split("=", 1) for word in sys.argv[1:])
    folder = Path(options["folder"])
    kv = gradwire.kv.create(options["store"])
    begin, states = (STEPS, folder / "adam.states") if "resume" in options else (0, None)
    random = np.random.default_rng(5)
    weights = {key: random.normal(size=shape).astype(np.float32) for key, shape in SHAPES.items()}
    if states is not None:
        weights = dict(np.load(folder / "weights.npz"))
    for key, value in weights.items():
        kv.init(key, value)
    kv.set_optimizer("adam", learning_rate=0.1, wd=0.01)
    if states is not None:
        kv.load_optimizer_states(states)
    else:
        train(kv, begin, STEPS)
        if kv.rank == 0:
            np.savez(folder / "weights.npz", **pulled(kv))
            kv.save_optimizer_states(folder / "adam.states")
    train(kv, STEPS, 2 * STEPS)
    digest = hashlib.sha256(b"".join(value.tobytes() for value in pulled(kv).values())).hexdigest()
    sys.stdout.write(json.dumps({"rank": kv.rank, "hashes": digest}) + "\n")
    kv.close()


main()
