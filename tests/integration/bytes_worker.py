"""A worker that exchanges one array, and prints what left the interface of its host in each step.

Arguments: codec, elements, steps.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gradwire
import numpy as np


def interface_bytes() -> int:
    """Bytes sent so far by the interfaces of this process's network namespace, loopback left out."""
    sent = 0
    for line in Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()[2:]:
        name, _, counters = line.partition(":")
        if name.strip() != "lo":
            sent += int(counters.split()[8])
    return sent


def main(codec: str, elements: int, steps: int) -> None:
    store = gradwire.kv.create("allreduce")
    store.set_gradient_compression(codec)
    random = np.random.default_rng(store.rank)
    value = np.zeros(elements, np.float32)
    store.init("weight", value)
    rows = []
    for _ in range(steps):
        gradient = random.normal(0, 0.6, elements).astype(np.float32)
        store.barrier()
        before = interface_bytes(), store.engine.counters()["bytes_sent"]
        store.pushpull("weight", gradient, value)
        store.barrier()
        after = interface_bytes(), store.engine.counters()["bytes_sent"]
        rows.append([after[0] - before[0], after[1] - before[1]])
    print(json.dumps(rows), flush=True)
    store.close()


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
