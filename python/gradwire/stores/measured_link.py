"""Measures the workers' link through a store that has joined already: what the chooser of placements goes by."""

from __future__ import annotations

import math
import time

import numpy as np

from gradwire import _core
from gradwire.collectives import Collectives
from gradwire.stores.placement import Link

_BARRIERS = 5
_FIRST_BYTES = 2**20
_MOST_BYTES = 2**26
_LONG_ENOUGH = 0.05  # seconds; what takes less is measured again with more


def measure(engine: _core.Engine) -> Link:
    """Times barriers and exact all-reduces of growing arrays. A collective: every worker must call it.

    An all-reduce moves 2 (N-1)/N of the array through each link, each way; a barrier is a message to the rendezvous and
    one back. Workers get slightly different numbers: agree on one worker's.

    Raises: gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
    """
    latency = _barrier_seconds(engine) / 2
    workers = engine.num_workers
    size = _FIRST_BYTES
    while True:
        taken = _all_reduce_seconds(engine, size)
        if taken >= _LONG_ENOUGH or size >= _MOST_BYTES:
            break
        size *= min(4, math.ceil(_LONG_ENOUGH / max(taken, 1e-6)))
    moved = 2 * (workers - 1) / workers * size
    return Link(max(moved, 1.0) / max(taken, 1e-6), latency)


def _barrier_seconds(engine: _core.Engine) -> float:
    """The quickest of several: what delays one is not the link."""
    times = []
    for _ in range(_BARRIERS):
        began = time.perf_counter()
        engine.barrier()
        times.append(time.perf_counter() - began)
    return min(times)


def _all_reduce_seconds(engine: _core.Engine, size: int) -> float:
    """The same on all workers, or they would not agree on whether to go on: the longest."""
    collectives = Collectives(engine)
    array = np.ones(size // 4, np.float32)
    engine.barrier()
    began = time.perf_counter()
    collectives.all_reduce(array, out=array)
    taken = np.array([time.perf_counter() - began])
    return float(collectives.all_reduce(taken, op="max")[0])
