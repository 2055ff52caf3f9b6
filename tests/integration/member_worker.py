"""Sums under gradwire.elastic, without torch, whose import takes seconds: name=value arguments. Notes its pid and steps
as elastic_worker.py does, and prints a record at its end.

    store=allreduce steps=60 (0: up to the one that the file end in $TEST_FOLDER names) pause=0.02
    elements=70000 (of its key)
    fail=setup (has an error of its own once it has joined) fail=extra (makes a call that the others do not)
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path

import gradwire as gw
import numpy as np

given = dict(argument.split("=", 1) for argument in sys.argv[1:])
STEPS, PAUSE = int(given.get("steps", "60")), float(given.get("pause", "0.02"))
ELEMENTS = int(given.get("elements", "70000"))
FOLDER = Path(os.environ["TEST_FOLDER"])

store = gw.kv.create(given.get("store", "allreduce"))
first_rank, first_generation = store.rank, store.generation
name = f"worker{first_rank}" if first_generation == 1 else f"newcomer{os.getpid()}"
(FOLDER / f"{name}.pid").write_text(str(os.getpid()))
if given.get("fail") == "setup":
    raise ConnectionError("no such data set")
if given.get("fail") == "extra":
    store.barrier()
state = gw.elastic.State(step=0)
gradient = np.full(ELEMENTS, 0.5, np.float32)


def last_step() -> float:
    end = FOLDER / "end"
    return STEPS or (int(end.read_text()) if end.exists() else math.inf)


@gw.elastic.run
def train(state: gw.elastic.State) -> None:
    store = state.store
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    total = np.zeros(ELEMENTS, np.float32)
    store.init(3, total)
    with (FOLDER / f"steps.{os.getpid()}").open("a") as steps:
        while state.step < last_step():
            store.pushpull(3, gradient, out=total)
            assert (total == 0.5 * store.num_workers).all()
            state.step += 1
            state.commit()
            line = [store.generation, store.rank, store.num_workers, state.step]
            print(json.dumps(line), file=steps, flush=True)
            time.sleep(PAUSE)


train(state)
record = {
    "rank": state.store.rank,
    "first_rank": first_rank,
    "workers": state.store.num_workers,
    "generation": state.store.generation,
    "step": state.step,
}
print(json.dumps(record), flush=True)
