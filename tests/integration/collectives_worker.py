"""A worker that runs every collective against NumPy's word for it. Options are words NAME=VALUE.

collectives_worker.py store=allreduce mode=check|misuse|endless
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import gradwire
import numpy as np
import torch
from gradwire.settings import definitions as settings
from numpy.testing import assert_array_equal

LARGE = 1_200_007  # several pieces in every share
REDUCE = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}


def given(rank: int, elements: int, dtype: str) -> Any:
    random = np.random.default_rng(rank)
    if np.dtype(dtype).kind == "f":
        return random.uniform(-2, 2, elements).astype(dtype)
    return random.integers(0, 256, elements).astype(np.uint8).astype(dtype)


def expected(ranks: int, elements: int, dtype: str, op: str) -> Any:
    """In rank order; float16 in float32, rounded once."""
    wide = np.float32 if dtype == "float16" else np.dtype(dtype).type
    result = given(0, elements, dtype).astype(wide)
    for rank in range(1, ranks):
        result = REDUCE.get(op, np.add)(result, given(rank, elements, dtype).astype(wide))
    return (result / wide(ranks) if op == "average" else result).astype(dtype)


def check(store: gradwire.kv.KVStore) -> str:
    """Compares, and returns the hash of what every rank must have got alike."""
    everybody, rank, ranks = store.collectives, store.rank, store.num_workers
    digest = hashlib.sha256()
    for dtype in ("uint8", "int8", "int32", "int64", "float16", "float32", "float64"):
        for op in REDUCE if np.dtype(dtype).kind != "f" else [*REDUCE, "average"]:
            for elements in (0, 1, 1000):
                result = everybody.all_reduce(given(rank, elements, dtype), op)
                assert_array_equal(result, expected(ranks, elements, dtype, op), f"{dtype} {op} {elements}")
                digest.update(result.tobytes())
    large = given(rank, LARGE, "float32")
    everybody.all_reduce(large, out=large)
    assert_array_equal(large, expected(ranks, LARGE, "float32", "sum"))
    digest.update(large.tobytes())

    rows = given(rank, 4 * 7, "int32").reshape(7, 4)
    mine = np.array_split(expected(ranks, 4 * 7, "int32", "sum").reshape(7, 4), ranks)[rank]
    assert_array_equal(everybody.reduce_scatter(rows), mine)

    halves = torch.arange(1000, dtype=torch.bfloat16) * (rank + 1)
    whole = sum((torch.arange(1000, dtype=torch.bfloat16) * (r + 1)).float() for r in range(ranks))
    assert torch.equal(everybody.all_reduce(halves), whole.to(torch.bfloat16))

    for root in range(ranks):
        values = given(rank, LARGE, "float64")
        everybody.broadcast(values, root)
        assert_array_equal(values, given(root, LARGE, "float64"))
    for step in (1, 100_000):  # ragged, some empty, some of several pieces
        blocks = everybody.all_gather(given(rank, 3 * (rank * step), "float64").reshape(-1, 3))
        for other, block in enumerate(blocks):
            assert_array_equal(block, given(other, 3 * (other * step), "float64").reshape(-1, 3))
    received = everybody.all_to_all(
        [given(10 * rank + to, (rank + to) * 40_000, "int64") for to in range(ranks)]
    )
    for other, block in enumerate(received):
        assert_array_equal(block, given(10 * other + rank, (other + rank) * 40_000, "int64"))
    everybody.barrier()
    return digest.hexdigest()


def misuse(store: gradwire.kv.KVStore) -> list[str]:
    """What ranks that differ are told; the store must live on."""
    everybody, odd = store.collectives, store.rank == 1
    zeros = np.zeros(4, np.float32)
    calls = [
        lambda: everybody.all_reduce(zeros, "max" if odd else "sum"),
        lambda: everybody.all_reduce(zeros.astype(np.int32 if odd else np.float32)),
        lambda: everybody.all_reduce(zeros.reshape((2, 2) if odd else (1, 4))),
        lambda: everybody.broadcast(zeros, root=1 if odd else 0),
        lambda: everybody.all_gather(zeros.reshape((2, 2) if odd else (1, 4))),
    ]
    texts = []
    for call in calls:
        try:
            call()
            texts.append("nothing was raised")
        except ValueError as error:
            texts.append(str(error))
    assert_array_equal(everybody.all_reduce(zeros + 1), zeros + store.num_workers)
    return texts


def endless(store: gradwire.kv.KVStore) -> None:
    folder = Path(os.environ["TEST_FOLDER"])
    array = np.ones(LARGE)
    for step in range(1_000_000):
        store.collectives.all_gather(array)
        if step == 2:
            (folder / f"worker{store.rank}.running").touch()


def main() -> None:
    options = dict(word.split("=", 1) for word in sys.argv[1:])
    rank = settings.read().rank
    (Path(os.environ["TEST_FOLDER"]) / f"worker{rank}.pid").write_text(str(os.getpid()))
    store = gradwire.kv.create(options["store"])
    result = {"check": check, "misuse": misuse, "endless": endless}[options["mode"]](store)
    print(json.dumps({"rank": store.rank, "result": result}))
    store.close()


main()
