"""One worker of MXNet's acceptance of row-sparse keys; see acceptance_rows_test.py.

acceptance_rows_worker.py STORE none|fp16
"""

from __future__ import annotations

import json
import sys
from typing import Any

import gradwire as gw
import numpy as np

SHAPE, BIG = (2, 3), (1211, 1211)
RATE, REPEATS, DENSITY = 2.0, 3, 0.3


def rows_of(store: gw.kv.KVStore, key: str, ids: Any, shape: tuple[int, ...]) -> Any:
    out = np.full((len(ids), *shape[1:]), np.nan, np.float32)
    store.row_sparse_pull(key, out, row_ids=ids)
    return out


def settled(store: gw.kv.KVStore, key: str, ids: Any, shape: tuple[int, ...]) -> Any:
    """The rows once every worker's push is in. A collective, of stores of every kind."""
    for _ in range(2):  # behind this worker's own pushes, then behind the others'
        rows = rows_of(store, key, ids, shape)
        store.barrier()
    return rows


def main() -> None:
    name, codec = sys.argv[1:]
    store = gw.kv.create(name)
    rank, workers = store.rank, store.num_workers
    store.set_gradient_compression({"type": codec})
    try:
        store.init("all", gw.RowSparse.from_dense(np.ones(SHAPE, np.float32)))
    except ValueError as error:  # before anything was said: the store goes on
        store.barrier()
        sys.stdout.write(json.dumps({"rank": rank, "refused": str(error)}) + "\n")
        return store.close()
    store.init("zeros", gw.RowSparse([], [], SHAPE))
    store.init("big", gw.RowSparse.from_dense(np.ones(BIG, np.float32)))
    store.set_optimizer("test", rescale_grad=RATE)
    record: dict[str, Any] = {
        "rank": rank,
        "all": [],
        "empty": rows_of(store, "zeros", [0, 1], SHAPE).tolist(),
    }

    for _ in range(REPEATS):  # every worker pushes rank + 1 to every row
        store.push("all", gw.RowSparse([0, 1], np.full(SHAPE, rank + 1, np.float32)))
        record["all"].append(float(np.unique(settled(store, "all", [0, 1], SHAPE)).item()))

    for step in range(REPEATS):  # nobody pushes a row, and then the last worker alone
        mine = [1] if step == REPEATS - 1 and rank == workers - 1 else []
        store.push("zeros", gw.RowSparse(mine, np.ones((len(mine), 3), np.float32)))
        record["zeros"] = settled(store, "zeros", [0, 1], SHAPE).tolist()

    expected = np.ones(BIG, np.float32)
    record["big_steps_equal"] = 0
    for step in range(REPEATS):  # each worker has rows of its own, a part of them others' too
        for worker in range(workers):
            ids = np.flatnonzero(np.random.default_rng([step, worker]).random(BIG[0]) < DENSITY)
            rows = np.broadcast_to((ids % 8 + worker + 1)[:, None], (len(ids), BIG[1])).astype(np.float32)
            expected[ids] += np.float32(RATE) * rows
            if worker == rank:
                store.push("big", gw.RowSparse(ids, rows))
        asked = np.random.default_rng([step, 100 + rank]).integers(0, BIG[0], 200)
        record["big_steps_equal"] += np.array_equal(settled(store, "big", asked, BIG), expected[asked])
    # In one piece: what print() writes in two may come out of mpirun with another rank's line in between.
    sys.stdout.write(json.dumps(record) + "\n")
    return store.close()


main()
