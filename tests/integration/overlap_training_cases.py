"""overlap_step on real training: LeNet on Fashion-MNIST, 40 steps, beside torch's own optimizer on the workers' means.

python overlap_training_cases.py STORE    as one rank of a gradwire job; prints "CASE passed" after each
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "experiments"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "experiments" / "fashion_mnist"))

import gradwire as gw
import gradwire.torch
import torch
import torch.nn.functional as F
from dataset import load
from networks import NETWORKS
from overlap_comparison import require_equal
from torch import nn
from torch_programs import CASES, case
from training.order import batches

BATCH, STEPS, WORKERS = 16, 40, 2
DATA = load(limit=WORKERS * BATCH * STEPS)

Make = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]


class OfMeans:
    """The plain loop's optimizer: waits for the means of all gradients, then takes torch's own step."""

    def __init__(self, store: gw.kv.KVStore, model: nn.Module, make: Make) -> None:
        self._store, self._inner = store, make(model.parameters())
        self.zero_grad, self.state_dict = self._inner.zero_grad, self._inner.state_dict

    def step(self) -> None:
        for parameter in (p for group in self._inner.param_groups for p in group["params"]):
            mean = self._store.collectives.all_reduce(parameter.grad.contiguous(), op="average")
            parameter.grad.copy_(torch.as_tensor(mean))
        self._inner.step()

    def close(self) -> None:
        pass


def trained(store: gw.kv.KVStore, wrap: Callable[[nn.Module], Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights and the optimizer's state after 40 steps."""
    torch.manual_seed(3)
    model = NETWORKS["lenet"]()
    first = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = wrap(model)
    steps = batches(len(DATA.train_labels), 0, 3, store.rank, WORKERS, BATCH)
    assert len(steps) == STEPS
    for pick in steps:
        optimizer.zero_grad()
        F.cross_entropy(model(DATA.train_images[pick]), DATA.train_labels[pick]).backward()
        optimizer.step()
    # Read with the last step's sums still to come.
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    state = optimizer.state_dict()["state"]
    optimizer.close()
    assert not any(torch.equal(weights[name], first[name]) for name in first), "nothing was learnt"
    return weights, state


def require_the_plain_loops_bits(store: gw.kv.KVStore, make: Make) -> None:
    plain_weights, plain_state = trained(store, lambda model: OfMeans(store, model, make))
    for overlap_step in (False, True):
        weights, state = trained(
            store,
            lambda model, overlap_step=overlap_step: gw.torch.DistributedOptimizer(
                make(model.parameters()),
                model.named_parameters(),
                store=store,
                compression="none",
                overlap_step=overlap_step,
            ),
        )
        require_equal(weights, plain_weights, f"overlap_step={overlap_step}: weights")
        require_equal(state, plain_state, f"overlap_step={overlap_step}: state")


@case
def sgd_with_momentum(store: gw.kv.KVStore) -> None:
    require_the_plain_loops_bits(
        store, lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4)
    )


@case
def adam(store: gw.kv.KVStore) -> None:
    require_the_plain_loops_bits(store, lambda parameters: torch.optim.Adam(parameters, lr=1e-3))


def main(kind: str) -> None:
    torch.set_num_threads(1)
    store = gw.kv.create(kind)
    for name, run in CASES.items():
        run(store)
        print(name, "passed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
