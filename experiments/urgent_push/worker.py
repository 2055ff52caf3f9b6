"""run.py's worker pushes what is urgent while bulk is on its way: python worker.py FILE BYTES ROUNDS SECONDS.

BYTES: of bulk. SECONDS: after how long in a round the urgent key is pushed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from gradwire import kv

URGENT_ELEMENTS = 1_000
WARM_UP = 2  # TCP's windows open


def run(bulk_bytes: int, rounds: int, after: float) -> dict[str, list[float]]:
    """Returns the seconds from push to sum of both keys, for every timed round.

    Raises: RuntimeError: a sum is wrong, or bulk was through before the urgent key was pushed.
    """
    store = kv.create("dist_sync")
    bulk, urgent = (np.ones(size, np.float32) for size in (bulk_bytes // 4, URGENT_ELEMENTS))
    sums = [np.zeros_like(bulk), np.zeros_like(urgent)]
    store.init(0, sums[0])
    store.init(1, sums[1])
    taken: dict[str, list[float]] = {"bulk": [], "urgent": []}
    for number in range(WARM_UP + rounds):
        for values in sums:
            values[:] = 0
        start = time.perf_counter()
        bulk_ticket: Any = store.engine.push_pull(0, bulk, sums[0], 0)
        time.sleep(after)
        if bulk_ticket.done:
            raise RuntimeError(f"urgent_push: all of bulk was summed within {after} s")
        pushed = time.perf_counter()
        store.engine.push_pull(1, urgent, sums[1], 1).wait()
        summed = time.perf_counter()
        bulk_ticket.wait()
        end = time.perf_counter()
        if not all(np.all(values == store.num_workers) for values in sums):
            raise RuntimeError("urgent_push: a sum is wrong")
        if number >= WARM_UP:
            taken["bulk"].append(end - start)
            taken["urgent"].append(summed - pushed)
    return taken


def main() -> None:
    file, bulk_bytes, rounds, after = sys.argv[1:]
    Path(file).write_text(json.dumps(run(int(bulk_bytes), int(rounds), float(after))))


if __name__ == "__main__":
    main()
