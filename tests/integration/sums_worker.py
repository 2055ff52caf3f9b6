"""A worker that pushes known arrays and keeps a hash of all that comes back. Options are words NAME=VALUE.

    sums_worker.py store=dist_sync steps=20 "codecs=none;2bit:threshold=0.5" pause=0.05 mode=push sizes=small

With sums_of=0,1/2,3 rank 0 pushes, instead of its own gradients, the sums of those of ranks 0 and 1, and rank 1
those of ranks 2 and 3: what hosts push whose workers sum first.

With optimizer=test servers apply that to weights, which come back in place of sums.

With die=1 worker 1 ends in the third step; with clocks_apart=0.05 the clock that a worker traces by is 50 ms times its
rank ahead.

Codecs are run one after the other, each on keys of its own. In the third step it says that it is running, and rank 0
then sleeps, if asked to, with Python's global lock held.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import gradwire
import numpy as np
from gradwire.settings import definitions as settings
from gradwire.stores import connect

OPTIONS = {
    "store": "dist_sync",
    "steps": "12",
    "codecs": "none",
    "pause": "0",
    "mode": "pushpull",
    "sleep": "0",
    "sizes": "small",
    "sums_of": "",
    "optimizer": "",
    "die": "",
    "clocks_apart": "0",
}
_CHANCE_ELEMENTS = 100  # so few codes are all 0 once in some hundred steps, by chance
SIZES = {
    "small": {"bias": (7,), "weight": (61, 83), "head": (10, 999)},
    # one element, several partitions, a short last codec unit, above the shard bound, one whole unit
    "large": {"a": (1,), "b": (130_001,), "c": (1100, 1000), "d": (65_536,)},
}


def gradients(
    shapes: dict[str, tuple[int, ...]], randoms: list[np.random.Generator]
) -> dict[str, np.ndarray]:
    """One step's gradients: the float32 sums, in order, of what each generator gives."""
    parts = [
        {key: random.normal(0, 0.6, shape).astype(np.float32) for key, shape in shapes.items()}
        for random in randoms
    ]
    return {key: functools.reduce(np.add, [part[key] for part in parts]) for key in shapes}


def train(store: gradwire.kv.KVStore, codec: str, options: dict[str, str]) -> str:
    """Runs all steps with one codec and returns the hash of everything received."""
    folder = Path(os.environ["TEST_FOLDER"])
    store.set_gradient_compression(codec)
    shapes = SIZES[options["sizes"]].items()
    sums = {f"{name} {codec}": np.zeros(shape, np.float32) for name, shape in shapes}
    store.init(list(sums), list(sums.values()))
    if options["optimizer"]:
        store.set_optimizer(options["optimizer"])
    summed = [host.split(",") for host in options["sums_of"].split("/")] if options["sums_of"] else None
    ranks = map(int, summed[store.rank]) if summed else [store.rank]
    randoms = [np.random.default_rng(rank) for rank in ranks]
    digest = hashlib.sha256()
    for step in range(int(options["steps"])):
        grads = gradients({key: value.shape for key, value in sums.items()}, randoms)
        if options["mode"] == "pushpull":
            store.pushpull(list(grads), list(grads.values()), out=list(sums.values()))
        else:
            for index, key in enumerate(grads):
                store.push(key, grads[key], priority=-index)
            store.pull(list(sums), out=list(sums.values()))
        large = [value for value in sums.values() if value.size > _CHANCE_ELEMENTS]
        assert all(value.any() for value in large), "only zeros came back"
        for value in sums.values():
            digest.update(value.tobytes())
        if step == 2:
            if options["die"] == str(store.rank):
                os._exit(3)  # with nothing said and nothing written
            (folder / f"worker{store.rank}.running").touch()
            if float(options["sleep"]) and store.rank == 0:
                ctypes.PyDLL(None).usleep(int(float(options["sleep"]) * 1e6))  # PyDLL keeps the lock
        time.sleep(float(options["pause"]))
    return digest.hexdigest()


def write_pid(rank: int) -> None:
    (Path(os.environ["TEST_FOLDER"]) / f"worker{rank}.pid").write_text(str(os.getpid()))


def set_clock(apart: float) -> None:
    """Has the engine that is opened next trace by a clock that is wrong, as on another machine."""
    options_of = connect._engine_options
    connect._engine_options = lambda values: options_of(values) | {"clock_offset": apart * (values.rank or 0)}


def main() -> None:
    options = OPTIONS | dict(word.split("=", 1) for word in sys.argv[1:])
    rank = settings.read().rank
    if rank is not None:
        write_pid(rank)
    set_clock(float(options["clocks_apart"]))
    store = gradwire.kv.create(options["store"])
    write_pid(store.rank)  # over MPI it is not known before
    hashes = {codec: train(store, codec, options) for codec in options["codecs"].split(";")}
    # In one piece: what print() writes in two may come out of mpirun with another rank's line in between.
    sys.stdout.write(json.dumps({"rank": store.rank, "hashes": hashes}) + "\n")
    store.close()


main()
