"""Trains a linear model under gradwire.elastic: name=value arguments. Prints a record at its end.

Every worker writes `pid` into $TEST_FOLDER/worker<rank>.pid, with the rank that it had first, and each step into
$TEST_FOLDER/steps.<pid>: generation, rank, number of workers and step.

    store=allreduce codec=none steps=60 pause=0.02 until=WORKERS (no pause once there are so many)
    fail=RANK:STEP (ends there with an error of its own; how=exit: by sys.exit(), how=connection: with one of a
    connection that is none of gradwire's)
    desert=RANK (is called, and dies before it can be reached) die=RANK (once it has joined, before it has a model)
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import gradwire as gw
import gradwire.torch
import torch
from torch.utils.data import DataLoader

given = dict(argument.split("=", 1) for argument in sys.argv[1:])
STEPS, PAUSE = int(given.get("steps", "60")), float(given.get("pause", "0.02"))
UNTIL = int(given.get("until", "1000"))
FAIL = tuple(int(number) for number in given.get("fail", "-1:-1").split(":"))
FOLDER = Path(os.environ["TEST_FOLDER"])
BATCH = 4

if os.environ.get("GRADWIRE_RANK") == given.get("desert", "none"):
    os.execv(sys.executable, [sys.executable, str(Path(__file__).with_name("deserter.py"))])

torch.set_num_threads(1)
store = gw.kv.create(given.get("store", "allreduce"))
first_rank, first_generation = store.rank, store.generation
name = f"worker{first_rank}" if first_generation == 1 else f"newcomer{os.getpid()}"
(FOLDER / f"{name}.pid").write_text(str(os.getpid()))
if name == "worker" + given.get("die", " none"):
    os.kill(os.getpid(), signal.SIGKILL)

torch.manual_seed(first_rank)  # the first weights differ: sync() makes them the same
model = torch.nn.Linear(37, 3)
features = torch.randn(256, 37, generator=torch.Generator().manual_seed(1))
targets = features @ torch.randn(37, 3, generator=torch.Generator().manual_seed(2))
optimizer = gw.torch.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
    model.named_parameters(),
    compression=given.get("codec", "none"),
    codecs={"*": given.get("codec", "none")},
)
state = gw.elastic.TorchState(
    model, optimizer, sampler=gw.elastic.Sampler(len(features), seed=7), step=0, losses=[]
)
residuals_kept: list[bool] = []


def residuals() -> dict[str, torch.Tensor]:
    return optimizer.state_dict().get("gradwire", {}).get("residuals", {})


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


@gw.elastic.run
def train(state: gw.elastic.TorchState) -> None:
    if state.store.generation > 1:
        kept = state._kept.values["optimizer"].get("gradwire", {}).get("residuals", {})
        had_none = first_generation > 1 or state.step == 0
        residuals_kept.append(same(residuals(), kept) and (had_none or bool(kept)))
    steps = (FOLDER / f"steps.{os.getpid()}").open("a")
    while state.step < STEPS:
        for pick in DataLoader(range(len(features)), batch_size=BATCH, sampler=state.sampler):
            if (first_rank, state.step) == FAIL and first_generation == 1:
                if given.get("how") == "exit":
                    sys.exit(3)
                if given.get("how") == "connection":
                    raise ConnectionResetError("the data set's host has gone")
                raise OSError("no such file of examples")
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(features[pick]), targets[pick])
            loss.backward()
            optimizer.step()
            state.sampler.record(BATCH)
            state.step += 1
            state.losses = [*state.losses[-9:], float(loss.detach())]
            state.commit()
            line = [state.store.generation, state.store.rank, state.store.num_workers, state.step]
            print(json.dumps(line), file=steps, flush=True)
            time.sleep(PAUSE if state.store.num_workers < UNTIL else 0)
            if state.step >= STEPS:
                return
        state.sampler.set_epoch(state.sampler.epoch + 1)


train(state)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
print(
    json.dumps(
        {
            "rank": state.store.rank,
            "first_rank": first_rank,
            "first_generation": first_generation,
            "workers": state.store.num_workers,
            "generation": state.store.generation,
            "step": state.step,
            "loss": float(torch.nn.functional.mse_loss(model(features), targets).detach()),
            "weights": digest.hexdigest(),
            "residuals_kept": residuals_kept,
        }
    ),
    flush=True,
)
