"""What a message costs a thread of the store: python -m gradwire.plan.link_probe FILE, in a job of two processes.

Tensors so small that only messages count: one alone takes a round trip, many at once take what the busiest thread
needs for a push and a reply each. For one alone, threads wake each other: that is processor time of the whole process.
Then one so large that only bytes count, of which the process's time is taken.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gradwire import _core, kv

_TENSORS = 512
_ELEMENTS = 64
_TURNS = 30
_LONE_ROUNDS = 50  # of a turn: enough for the clock
_LARGE_ELEMENTS = 8 * 2**20
_LARGE_TURNS = 5


def _seconds(engine: _core.Engine, keys: Sequence[int], arrays: Sequence[np.ndarray]) -> float:
    began = time.perf_counter()
    tickets = [engine.push_pull(key, array, array) for key, array in zip(keys, arrays, strict=True)]
    for ticket in tickets:
        ticket.wait()
    return time.perf_counter() - began


def measure(engine: _core.Engine) -> dict[str, float]:
    """Times rounds of one and of many small tensors. A collective.

    Returns: round_trip_seconds: of one tensor alone; message_seconds: of a thread, for one message of many;
        wakeup_seconds: of a core, which a message that comes alone takes beside that; byte_seconds: of a core, for a
        byte that is sent or received, of which copying the sum to its place is not part. Times are of the quickest of
        several turns: what delays the others is not the store.
    """
    arrays = [np.ones(_ELEMENTS, np.float32) for _ in range(_TENSORS)]
    keys = engine.declare([(f"probe.{i}", [_ELEMENTS], "float32") for i in range(_TENSORS)])
    _seconds(engine, keys, arrays)  # memory and connections
    alone = min(_seconds(engine, keys[:1], arrays[:1]) for _ in range(_TURNS))
    many = min(_seconds(engine, keys, arrays) for _ in range(_TURNS))
    message = many / (2 * _TENSORS)
    lone = min(_lone_seconds(engine, keys[0], arrays[0]) for _ in range(_TURNS))
    return {
        "round_trip_seconds": alone,
        "message_seconds": message,
        "wakeup_seconds": max(0.0, lone - message),
        "byte_seconds": _byte_seconds(engine),
    }


def _lone_seconds(engine: _core.Engine, key: int, array: np.ndarray) -> float:
    """Returns the processor time of one message that comes alone; in a round, this process sends and receives one."""
    began = time.process_time()
    for _ in range(_LONE_ROUNDS):
        engine.push_pull(key, array, array).wait()
    return (time.process_time() - began) / (2 * _LONE_ROUNDS)


def _byte_seconds(engine: _core.Engine) -> float:
    large, copy = (np.ones(_LARGE_ELEMENTS, np.float32) for _ in range(2))
    (key,) = engine.declare([("probe.large", [_LARGE_ELEMENTS], "float32")])
    exchanges, copies = [], []
    for _ in range(1 + _LARGE_TURNS):
        began = time.process_time()
        engine.push_pull(key, large, large).wait()
        exchanged = time.process_time()
        np.copyto(copy, large)
        exchanges.append(exchanged - began)
        copies.append(time.process_time() - exchanged)
    alone = min(exchanges[1:]) - min(copies[1:])  # the first exchange makes connections
    return max(0.0, alone) / (2 * large.nbytes)


def main(file: str) -> None:
    store = kv.create("dist_sync")
    Path(file).write_text(json.dumps(measure(store.engine)), encoding="utf-8")
    store.close()


if __name__ == "__main__":
    main(sys.argv[1])
