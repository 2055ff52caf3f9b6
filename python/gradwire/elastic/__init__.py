"""Elastic training: continues without workers that die, and admits new ones with the current weights.

    store = gw.kv.create("allreduce", on_failure="continue")     # or GRADWIRE_ON_FAILURE=continue
    optimizer = gw.torch.DistributedOptimizer(optimizer, model.named_parameters(), "int8")
    sampler = gw.elastic.Sampler(len(data), seed=7)
    state = gw.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

    @gw.elastic.run
    def train(state):
        while state.epoch < 90:
            for batch in DataLoader(data, batch_size=32, sampler=state.sampler):
                ...                                  # backward(), step()
                state.sampler.record(32)
                state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)

    train(state)

    gradwire run -n 4 --on-failure continue --min-workers 2 --restarts 3 python train.py
    gradwire run --join tcp://10.0.0.1:40123 -n 1 python train.py          # one more, from any machine

A job on several machines is encrypted: to add workers to it later, set GRADWIRE_JOB_KEY (`gradwire key`) before it
starts.

A job lives in *generations*. When a worker dies, calls in progress fail on all others. These join again, return to the
last commit, take rank 0's state and call the function again. A new worker waits in `kv.create` until the next commit.
There all others join again too, and the new worker starts with their state. Residuals of the survivors at the commit
are kept, and means are over the current workers.

Between `kv.create` and run(), call no collective except DistributedOptimizer: a worker that joins later makes its
optimizer there, while the others move theirs. broadcast_parameters() is not needed. A worker may also die before the
first step: kv.create then joins again, and run() moves an unfinished DistributedOptimizer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradwire._core import MembershipChanged
from gradwire.elastic.run import run
from gradwire.elastic.sampler import Sampler
from gradwire.elastic.state import State

if TYPE_CHECKING:
    from gradwire.torch.elastic_state import TorchState

__all__ = ["MembershipChanged", "Sampler", "State", "TorchState", "run"]


def __getattr__(name: str) -> Any:
    """Imports torch only where it is used."""
    if name == "TorchState":
        return importlib.import_module("gradwire.torch.elastic_state").TorchState
    raise AttributeError(f"module 'gradwire.elastic' has no attribute {name!r}; it has {', '.join(__all__)}")
