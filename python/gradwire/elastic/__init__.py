"""Training that goes on without workers that die, and takes in new ones with the current weights.

    store = gw.kv.create("allreduce", on_failure="continue")     # or GRADWIRE_ON_FAILURE=continue
    optimizer = gw.torch.DistributedOptimizer(optimizer, model.named_parameters(), "2bit")
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

A job beyond one machine is encrypted: to add workers to it, set GRADWIRE_JOB_KEY (`gradwire key`) before it starts.

A job lives in *generations*. When a worker dies, what is under way fails on all others; they join again, go back to
the last commit, take rank 0's state and call the function again. A newcomer is held in `kv.create` until the next
commit, at which all others join again likewise: it begins with their state. What the survivors' codecs had not sent at
the commit is kept, and a mean is over the workers that there are.

Nothing that all workers do together may stand between `kv.create` and run() but a DistributedOptimizer: who joins
later makes one there, while the others move theirs. No broadcast_parameters() is needed. Before the first step, too,
a worker may die: kv.create joins again, and a DistributedOptimizer that was half made is moved by run().
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
