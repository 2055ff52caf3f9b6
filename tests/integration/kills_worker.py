"""A worker that goes through all that a job has: first values, rounds, barriers, collectives, checkpoints, its end.

kills_worker.py steps=40 pause=0.02
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import gradwire
import numpy as np


def main() -> None:
    options = {"steps": "40", "pause": "0.02", "store": "dist_sync"} | dict(
        word.split("=", 1) for word in sys.argv[1:]
    )
    folder = Path(os.environ["TEST_FOLDER"])
    store = gradwire.kv.create(options["store"])
    store.set_gradient_compression("2bit:threshold=0.5")
    sums = np.zeros(140_000, np.float32)  # a share on every server
    store.init("w", sums)
    random = np.random.default_rng(store.rank)
    for step in range(int(options["steps"])):
        store.pushpull("w", random.normal(0, 0.6, sums.shape).astype(np.float32), out=sums)
        store.barrier()
        if step % 5 == 1:
            store.collectives.all_reduce(np.ones(100, np.float32))
        if step % 10 == 2:
            store.save_checkpoint(str(folder / f"saved-{step}"))
        time.sleep(float(options["pause"]))
    store.close()
    sys.stdout.write(json.dumps({"rank": store.rank, "done": True}) + "\n")


main()
