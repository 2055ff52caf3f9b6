"""One worker and a key of many elements, in fp16, through a server of its own process; checks every sum.

large_key_worker.py elements=2200000000 steps=2
"""

from __future__ import annotations

import json
import resource
import sys

import gradwire
import numpy as np

PIECE = 1 << 24  # elements that are written and checked at a time


def value_at(begin: int, count: int, step: int) -> np.ndarray:
    """Numbers that float16 holds, other ones in every piece."""
    return ((np.arange(begin, begin + count, dtype=np.int64) * 7 + step) % 2039 - 1019).astype(np.float32)


def main() -> None:
    options = dict(word.split("=", 1) for word in sys.argv[1:])
    elements, steps = int(options["elements"]), int(options["steps"])
    store = gradwire.kv.create("dist_sync")
    store.set_gradient_compression({"type": "fp16"})
    (key,) = store.engine.declare([("large", [elements], "float32")])
    array = np.empty(elements, np.float32)
    for step in range(steps):
        for begin in range(0, elements, PIECE):
            count = min(PIECE, elements - begin)
            array[begin : begin + count] = value_at(begin, count, step)
        store.wait_until(store.engine.push_pull(key, array, array).wait)
        for begin in range(0, elements, PIECE):
            count = min(PIECE, elements - begin)
            expected = value_at(begin, count, step) * store.num_workers
            assert np.array_equal(array[begin : begin + count], expected), (
                f"step {step}, elements from {begin}"
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"elements": elements, "peak_bytes": peak, "bytes_per_element": peak / elements}))
    store.close()


main()
