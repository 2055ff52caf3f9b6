"""Gives the same number each step under gradwire.elastic or hvd.elastic, and accounts for it: name=value arguments.

Prints a record at its end: what all ranks have given and what came of it, what went with workers that died, and what
this one's codecs owe, once servers have handed over what they owe. A reset callback sets the learning rate to 0.125 a
worker, and each rank begins with that.

Every worker writes its pid into $TEST_FOLDER/worker<rank>.pid, with the rank that it had first, and each step into
$TEST_FOLDER/steps.<pid>: generation, rank, number of workers and step.

    door=kv (a plain store, a key and a table; or torch, horovod) store=allreduce codec=none
    steps=60 pause=0.02 until=WORKERS (no pause once there are so many)
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import numpy as np
import torch

given = dict(argument.split("=", 1) for argument in sys.argv[1:])
DOOR, CODEC = given.get("door", "kv"), given.get("codec", "none")
STEPS, PAUSE = int(given.get("steps", "60")), float(given.get("pause", "0.02"))
UNTIL = int(given.get("until", "1000"))
FOLDER = Path(os.environ["TEST_FOLDER"])
VALUE, RATE = 0.75, 0.125  # powers of two and their sums: float32 has them exactly

torch.set_num_threads(1)


class PlainDoor:
    """A key and a table of a store."""

    def __init__(self) -> None:
        store = gw.kv.create(given.get("store", "allreduce"), on_failure="continue")
        store.set_gradient_compression(CODEC)
        self.state = gw.elastic.State(store, step=0, given=0.0, delivered=0.0, lost=0.0, sizes=[])
        self.run = gw.elastic.run

    @property
    def store(self) -> gw.kv.KVStore:
        return self.state.store

    def draw(self) -> None:
        self.store.engine.draw_residuals()

    def begin(self) -> None:
        self.store.init("key", np.zeros(4, np.float32))
        self.store.init("table", gw.RowSparse([], [], (3, 2)))

    def exchange(self, step: int) -> tuple[float, float]:
        """What this worker gives, and what came of all."""
        out = np.full(4, VALUE, np.float32)
        self.store.pushpull("key", out)
        rows = gw.RowSparse([step % 3], np.full((1, 2), VALUE, np.float32))
        self.store.pushpull("table", rows, rows)
        return 6 * VALUE, float(out.sum() + rows.rows.sum())

    def owed(self) -> float:
        unsent = self.store.unsent()
        rows = [rows for _, rows in unsent.tables.values()]
        return float(sum(np.sum(each) for each in [*unsent.keys.values(), *rows]))

    def at_the_end(self) -> tuple[str, float, float]:
        return self.store.compression.spec, 0.0, 0.0


class TorchDoor:
    """An optimizer around one weight."""

    def __init__(self) -> None:
        store = gw.kv.create(given.get("store", "allreduce"), on_failure="continue")
        self.weight = torch.nn.Parameter(torch.zeros(4, 4))
        self.model = torch.nn.ParameterList([self.weight])
        self.optimizer = gw.torch.DistributedOptimizer(
            torch.optim.SGD([self.weight], lr=RATE * store.num_workers),
            [("w", self.weight)],
            CODEC,
            store=store,
        )
        self.state = gw.elastic.TorchState(
            self.model, self.optimizer, step=0, given=0.0, delivered=0.0, lost=0.0, sizes=[]
        )
        self.state.register_reset_callbacks([self._set_rate])
        self.run = gw.elastic.run

    def _set_rate(self) -> None:
        self.optimizer.param_groups[0]["lr"] = RATE * self.store.num_workers

    @property
    def store(self) -> gw.kv.KVStore:
        return self.state.store

    def draw(self) -> None:
        self.store.engine.draw_residuals()

    def begin(self) -> None:
        pass

    def exchange(self, step: int) -> tuple[float, float]:
        before, rate = self.weight.detach().clone(), self.optimizer.param_groups[0]["lr"]
        self.optimizer.zero_grad()
        (self.weight * VALUE).sum().backward()
        self.optimizer.step()
        return 16 * VALUE, self.store.num_workers * float((before - self.weight.detach()).sum()) / rate

    def owed(self) -> float:
        return float(
            sum(
                each.sum()
                for each in self.optimizer.state_dict().get("gradwire", {}).get("residuals", {}).values()
            )
        )

    def at_the_end(self) -> tuple[str, float, float]:
        return CODEC, float(self.weight.detach().mean()), self.optimizer.param_groups[0]["lr"]


class HorovodDoor(TorchDoor):
    """The same by Horovod's names."""

    def __init__(self) -> None:
        import gradwire.horovod.torch as hvd
        from gradwire.horovod import named_sums, session

        self.hvd, self.session, self.named_sums = hvd, session, named_sums
        hvd.init()
        self.weight = torch.nn.Parameter(torch.zeros(4, 4))
        self.model = torch.nn.ParameterList([self.weight])
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([self.weight], lr=RATE * hvd.size()), [("w", self.weight)], CODEC
        )
        self.state = hvd.elastic.TorchState(
            model=self.model, optimizer=self.optimizer, step=0, given=0.0, delivered=0.0, lost=0.0, sizes=[]
        )
        self.state.register_reset_callbacks([self._set_rate])
        self.run = hvd.elastic.run

    def _set_rate(self) -> None:
        self.optimizer.param_groups[0]["lr"] = RATE * self.hvd.size()

    @property
    def store(self) -> gw.kv.KVStore:
        return self.session.current().store

    def draw(self) -> None:
        from gradwire.horovod.torch.elastic import membership

        membership.draw_residuals()

    def owed(self) -> float:
        return float(sum(each.sum() for each in self.named_sums.unsent(self.store).values()))


DOORS: dict[str, Callable[[], Any]] = {"kv": PlainDoor, "torch": TorchDoor, "horovod": HorovodDoor}
door = DOORS[DOOR]()
first_rank, first_generation = door.store.rank, door.store.generation
name = f"worker{first_rank}" if first_generation == 1 else f"newcomer{os.getpid()}"
(FOLDER / f"{name}.pid").write_text(str(os.getpid()))


@door.run
def train(state: Any) -> None:
    door.begin()
    workers = door.store.num_workers
    if (
        state.sizes and workers < state.sizes[-1]
    ):  # all give the same, so the dead one owed what this one does
        state.lost += (state.sizes[-1] - workers) * door.owed()
    with (FOLDER / f"steps.{os.getpid()}").open("a") as steps:
        while state.step < STEPS:
            own, came = door.exchange(state.step)
            state.given += workers * own
            state.delivered += came
            state.sizes = [*state.sizes, workers]
            state.step += 1
            line = [door.store.generation, door.store.rank, workers, state.step]
            print(json.dumps(line), file=steps, flush=True)
            state.commit()
            time.sleep(PAUSE if workers < UNTIL else 0)


train(door.state)
door.draw()
codec, weight, rate = door.at_the_end()
print(
    json.dumps(
        {
            "rank": door.store.rank,
            "first_rank": first_rank,
            "workers": door.store.num_workers,
            "given": door.state.given,
            "delivered": door.state.delivered,
            "lost": door.state.lost,
            "owed": door.owed(),
            "sizes": door.state.sizes,
            "codec": codec,
            "weight": weight,
            "rate": rate,
        }
    ),
    flush=True,
)
