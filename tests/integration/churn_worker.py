"""Joins and leaves job after job in one process, and writes what the process holds after each.

    churn_worker.py seconds=20 least=12

Two workers of an all-reduce store, each a thread, meet at a scheduler of this process over TCP, run three rounds, and
leave. A line of JSON for each job: seconds since the first, file descriptors, threads, resident bytes.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
from gradwire import _core


def work(rank: int, scheduler: _core.Scheduler, endpoint: str, errors: list[BaseException]) -> None:
    try:
        serves = scheduler if rank == 0 else None
        engine = _core.connect_peers(serves, rank=rank, workers=2, scheduler=endpoint, ipc=rank == 1)
        engine.set_compression("2bit:threshold=0.5", "exact")
        keys = engine.declare([("w", [70_000], "float32")])
        sums, gradient = np.zeros(70_000, np.float32), np.ones(70_000, np.float32)
        for _ in range(3):
            engine.push_pull(keys[0], gradient, sums, 0).wait()
        assert (sums == 1).all()
        engine.close()
        while not engine.outlast(1.0):
            pass
    except BaseException as error:
        errors.append(error)


def one_job() -> None:
    scheduler = _core.Scheduler(workers=2, scheduler="tcp://127.0.0.1:0")
    errors: list[BaseException] = []
    given = (scheduler, scheduler.endpoint, errors)
    ranks = [threading.Thread(target=work, args=(rank, *given)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if errors:
        raise errors[0]


def held() -> dict[str, int]:
    """What this process holds of the system."""
    gc.collect()
    threads = []
    for _ in range(5):  # one that was joined may be listed until the kernel has removed it
        threads.append(len(os.listdir("/proc/self/task")))
        time.sleep(0.01)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": min(threads),
        "resident_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
    }


def main() -> None:
    options = {"seconds": "0", "least": "12"} | dict(word.split("=", 1) for word in sys.argv[1:])
    began, jobs = time.monotonic(), 0
    while jobs < int(options["least"]) or time.monotonic() - began < float(options["seconds"]):
        one_job()
        jobs += 1
        print(json.dumps({"seconds": round(time.monotonic() - began, 3), **held()}), flush=True)


main()
