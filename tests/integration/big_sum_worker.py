"""A worker of sums of 400 MB, one after the other; the victim kills itself in the middle of one.

big_sum_worker.py store=allreduce victim=1
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import gradwire
import numpy as np

ELEMENTS = 100_000_000
MOST_SUMS = 20
"""The first sum may take far longer than those after it: its third is not always the middle of the second."""


def die_in_the_middle(store: gradwire.kv.KVStore, whole: float) -> None:
    """Of 2 (N-1)/N of 400 MB it has sent a quarter of 400 MB, or, where MPI sums and nothing is counted, it has taken
    a third of the time of a whole sum."""
    if store.type == "allreduce_mpi":
        time.sleep(whole / 3)
    else:
        begun = store.engine.counters()["bytes_sent"]
        while store.engine.counters()["bytes_sent"] - begun < ELEMENTS:
            time.sleep(0.001)
    (Path(os.environ["TEST_FOLDER"]) / "killed").write_text(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    options = dict(word.split("=", 1) for word in sys.argv[1:])
    store = gradwire.kv.create(options["store"])
    (Path(os.environ["TEST_FOLDER"]) / f"worker{store.rank}.pid").write_text(str(os.getpid()))
    gradient = np.ones(ELEMENTS, np.float32)
    store.init("big", np.zeros(ELEMENTS, np.float32))
    store.barrier()
    began = time.monotonic()
    store.pushpull("big", gradient)
    whole = time.monotonic() - began
    store.barrier()
    if store.rank == int(options["victim"]):
        threading.Thread(target=die_in_the_middle, args=(store, whole), daemon=True).start()
    for _ in range(MOST_SUMS):
        store.pushpull("big", gradient)
    sys.stderr.write(f"worker {store.rank} has sums that lack nobody\n")


main()
