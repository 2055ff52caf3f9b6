"""Trains a linear model under hvd.elastic.run, as a script of Horovod's would: name=value arguments. Prints a record at
its end.

Every worker writes its pid into $TEST_FOLDER/worker<rank>.pid, with the rank that it had first, and each step into
$TEST_FOLDER/steps.<pid>: generation, rank, number of workers and step.

    steps=60 pause=0.02 until=WORKERS (no pause once there are so many) codec=none
    fail=RANK:STEP how=raise (ends there with an error of its own; likewise exit, and shutdown: raise after
    hvd.shutdown()) reset=RANK (its reset callback raises)
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import gradwire.horovod.torch as hvd
import torch
from gradwire.horovod import session
from torch.utils.data import DataLoader

given = dict(argument.split("=", 1) for argument in sys.argv[1:])
STEPS, PAUSE = int(given.get("steps", "60")), float(given.get("pause", "0.02"))
UNTIL = int(given.get("until", "1000"))
FAIL = tuple(int(number) for number in given.get("fail", "-1:-1").split(":"))
HOW, RESET = given.get("how", "raise"), int(given.get("reset", "-1"))
FOLDER = Path(os.environ["TEST_FOLDER"])
BATCH = 4


def generation() -> int:
    return int(session.current().store.generation)


torch.set_num_threads(1)
hvd.init()
first_rank, first_generation = hvd.rank(), generation()
name = f"worker{first_rank}" if first_generation == 1 else f"newcomer{os.getpid()}"
(FOLDER / f"{name}.pid").write_text(str(os.getpid()))

torch.manual_seed(first_rank)  # the first weights differ: sync() makes them the same
model = torch.nn.Linear(37, 3)
features = torch.randn(256, 37, generator=torch.Generator().manual_seed(1))
targets = features @ torch.randn(37, 3, generator=torch.Generator().manual_seed(2))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
    model.named_parameters(),
    compression=given.get("codec", "none"),
)
sampler = hvd.elastic.ElasticSampler(features, seed=7)
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, step=0, losses=[])
sizes: list[int] = []


def on_reset() -> None:
    sizes.append(hvd.size())
    if first_rank == RESET:
        raise OSError("no such file of sizes")


state.register_reset_callbacks([on_reset])


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    steps = (FOLDER / f"steps.{os.getpid()}").open("a")
    while state.step < STEPS:
        for number, pick in enumerate(
            DataLoader(range(len(features)), batch_size=BATCH, sampler=state.sampler)
        ):
            if (first_rank, state.step) == FAIL and first_generation == 1:
                if HOW == "exit":
                    sys.exit(3)
                if HOW == "shutdown":
                    hvd.shutdown()
                raise OSError("no such file of examples")
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(features[pick]), targets[pick])
            loss.backward()
            optimizer.step()
            state.sampler.record_batch(number, BATCH)
            state.losses = [*state.losses, float(hvd.allreduce(loss.detach(), name="loss"))]
            state.step += 1
            print(json.dumps([generation(), hvd.rank(), hvd.size(), state.step]), file=steps, flush=True)
            state.commit()
            if state.step == STEPS:
                return
            time.sleep(PAUSE if hvd.size() < UNTIL else 0)
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)


train(state)
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
record = {
    "rank": hvd.rank(),
    "first_rank": first_rank,
    "workers": hvd.size(),
    "generation": generation(),
    "step": state.step,
    "sizes": sizes,
    "losses": len(state.losses),
    "loss": state.losses[-1],
    "weights": hashlib.sha256(weights).hexdigest(),
}
print(json.dumps(record), flush=True)
