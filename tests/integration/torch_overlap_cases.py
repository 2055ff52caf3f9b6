"""What the ranks do in torch_overlap_ranks_test.py: each case trains twice, with overlap_step and without, and the bits
of weights and of the optimizer's state are the same. Here are optimizers, options and loops; models are in
torch_overlap_model_cases.py.

python torch_overlap_cases.py STORE    as one rank of a gradwire job; prints "CASE passed" after each
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import gradwire as gw
import gradwire.torch
import torch
import torch_overlap_model_cases  # noqa: F401 (its cases are in the table)
from overlap_comparison import (
    Wrap,
    loss_of,
    momentum,
    require_equal,
    require_the_plain_loop,
    take_steps,
    train_net,
)
from torch import nn
from torch_programs import CASES, Net, case

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": momentum,
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=1e-3),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "adam with a tensor for its rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
}


@case
def every_optimizer(store: gw.kv.KVStore) -> None:
    for make in OPTIMIZERS.values():
        require_the_plain_loop(store, lambda wrap, make=make: train_net(store, wrap, make))


@case
def every_way_to_compress(store: gw.kv.KVStore) -> None:
    for compression in ("2bit", "2bit:threshold=0.001", "2bit:threshold=auto,reply=2bit", "fp16"):
        for make in (momentum, OPTIMIZERS["adam"]):
            require_the_plain_loop(
                store, lambda wrap, make=make: train_net(store, wrap, make), compression=compression
            )


@case
def groups_with_rates_of_their_own(store: gw.kv.KVStore) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        members = list(parameters)
        groups = [{"params": members[::2], "lr": 0.1}, {"params": members[1::2], "lr": 0.01, "momentum": 0.5}]
        return torch.optim.SGD(groups, momentum=0.9)

    require_the_plain_loop(store, lambda wrap: train_net(store, wrap, make))


@case
def momentum_that_workers_send(store: gw.kv.KVStore) -> None:
    for compression in ("none", "2bit"):
        require_the_plain_loop(
            store, lambda wrap: train_net(store, wrap, momentum_correction=True), compression=compression
        )


@case
def a_warm_up(store: gw.kv.KVStore) -> None:
    require_the_plain_loop(
        store,
        lambda wrap: train_net(store, wrap, warm_up=[("none", 1), ("fp16", 2)]),
        compression="2bit:threshold=0.001",
    )


@case
def passes_that_are_added_up(store: gw.kv.KVStore) -> None:
    def backward(model: nn.Module, step: int) -> None:
        loss_of(model, store, step).backward()

    def both_sent(model: nn.Module, optimizer: Any, step: int) -> None:
        """The second one begins while the first one's sums are under way, unless the optimizer knows of both."""
        optimizer.zero_grad()
        backward(model, 2 * step)
        backward(model, 2 * step + 1)
        optimizer.step()

    def first_kept(model: nn.Module, optimizer: Any, step: int) -> None:
        optimizer.zero_grad()
        with optimizer.no_sync():
            backward(model, 2 * step)
        backward(model, 2 * step + 1)
        optimizer.step()

    def second_kept(model: nn.Module, optimizer: Any, step: int) -> None:
        """The local one begins while the first one's sums are under way, of which step() has not heard."""
        optimizer.zero_grad()
        backward(model, 2 * step)
        with optimizer.no_sync():
            backward(model, 2 * step + 1)
        optimizer.step()

    def never_cleared(model: nn.Module, optimizer: Any, step: int) -> None:
        backward(model, step)
        optimizer.step()

    def cleared_before_the_step(model: nn.Module, optimizer: Any, step: int) -> None:
        optimizer.zero_grad()
        backward(model, step)
        if step % 2:
            optimizer.zero_grad()
        optimizer.step()

    def two_steps_on_one_gradient(model: nn.Module, optimizer: Any, step: int) -> None:
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        optimizer.step()

    def training(step: Callable[..., None], **options: Any) -> Callable[[Wrap], nn.Module]:
        def train(wrap: Wrap) -> nn.Module:
            model = Net()
            optimizer = wrap(model, **options)
            for number in range(4):
                step(model, optimizer, number)
            return model

        return train

    require_the_plain_loop(store, training(both_sent, backward_passes_per_step=2))
    for step in (
        both_sent,
        first_kept,
        second_kept,
        never_cleared,
        cleared_before_the_step,
        two_steps_on_one_gradient,
    ):
        require_the_plain_loop(store, training(step))


@case
def a_graph_from_before_the_step(store: gw.kv.KVStore) -> None:
    """Its backward() begins while sums are under way that nobody has waited for."""

    def train(wrap: Wrap) -> nn.Module:
        model = nn.ParameterDict({"a": nn.Parameter(torch.ones(5)), "b": nn.Parameter(torch.ones(5))})
        optimizer = wrap(model)
        for step in range(4):
            early = ((step + 1.0 + store.rank) * model["a"]).sum() + model["b"].sum()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            (model["a"] * model["b"] * (1.0 + store.rank)).sum().backward()
            optimizer.step()
            if step % 2:
                optimizer.zero_grad(set_to_none=step == 1)
            early.backward()
            optimizer.step()
        return model

    require_the_plain_loop(store, train)


@case
def checkpoints_go_on_either_way(store: gw.kv.KVStore) -> None:
    """A state that was saved with a step under way, loaded with and without overlap_step."""

    def train(wrap: Wrap, first: bool, then: bool) -> nn.Module:
        model = Net()
        optimizer = wrap(model, overlap_step=first)
        take_steps(optimizer, lambda step: loss_of(model, store, step), steps=3)
        weights, state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        optimizer.close()
        again = Net()
        again.load_state_dict(weights)
        optimizer = wrap(again, overlap_step=then)
        optimizer.load_state_dict(state)
        take_steps(optimizer, lambda step: loss_of(again, store, 3 + step), steps=3)
        return again

    results = []
    for first, then in ((False, False), (True, False), (False, True), (True, True)):

        def record(wrap: Wrap, first: bool = first, then: bool = then) -> nn.Module:
            model = train(wrap, first, then)
            results.append(copy.deepcopy(model.state_dict()))
            return model

        require_the_plain_loop(store, record, compression="2bit:threshold=0.001")
    for each in results:
        require_equal(each, results[0], "weights")


@case
def broadcasts_see_updated_weights(store: gw.kv.KVStore) -> None:
    def train(wrap: Wrap) -> nn.Module:
        model = Net()
        optimizer = wrap(model)

        def broadcast(step: int) -> None:
            gw.torch.broadcast_parameters(model.named_parameters(), store=store)
            gw.torch.broadcast_optimizer_state(optimizer, store=store)

        take_steps(optimizer, lambda step: loss_of(model, store, step), steps=3, after=broadcast)
        return model

    require_the_plain_loop(store, train)


def leave_with_a_step_under_way(store: gw.kv.KVStore) -> None:
    """The script's last step; nobody reads what it changes, and nobody closes anything."""
    model = nn.Linear(300, 300)
    gw.torch.broadcast_parameters(model.state_dict(), store=store)
    optimizer = gw.torch.DistributedOptimizer(
        momentum(model.parameters()), model.named_parameters(), store=store, overlap_step=True
    )
    take_steps(optimizer, lambda step: model(torch.ones(2, 300) * step).sum(), steps=2)


def main(kind: str) -> None:
    torch.set_num_threads(1)
    store = gw.kv.create(kind)
    for name, run in CASES.items():
        run(store)
        store.set_gradient_compression("none")
        print(name, "passed", flush=True)
    leave_with_a_step_under_way(store)


if __name__ == "__main__":
    main(sys.argv[1])
