"""A worker that sums gradients of which few elements reach the threshold.

lossless_worker.py STORE COMPRESSION
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import gradwire
import numpy as np
from gradwire.settings import definitions as settings

ELEMENTS = 500_000
STEPS = 4


def main() -> None:
    rank = settings.read().rank
    (Path(os.environ["TEST_FOLDER"]) / f"worker{rank}.pid").write_text(str(os.getpid()))
    store = gradwire.kv.create(sys.argv[1])
    store.set_gradient_compression(sys.argv[2])
    store.init("w", np.zeros(ELEMENTS, np.float32))
    random = np.random.default_rng(store.rank)
    quiet = np.arange(ELEMENTS) % 97 != 0
    digest = hashlib.sha256()
    first = 0  # bytes of the first round, which may be dense
    for step in range(STEPS):
        gradient = random.uniform(-0.6, 0.6, ELEMENTS).astype(np.float32)
        gradient[quiet] *= np.float32(0.001)
        store.pushpull("w", gradient)
        digest.update(gradient.tobytes())
        store.barrier()  # all answers are counted where they were sent
        if step == 0:
            first = store.engine.counters()["bytes_sent"]
    sent = store.engine.counters()["bytes_sent"] - first
    print(json.dumps({"rank": store.rank, "result": digest.hexdigest(), "sent": sent}))
    store.close()


main()
