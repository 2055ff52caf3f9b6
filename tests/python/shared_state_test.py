"""What all ranks of an elastic job must hold alike, compared: the first that differs is named, and what is a rank's own
is not compared."""

from __future__ import annotations

from typing import Any

import gradwire as gw
import gradwire.torch
import numpy as np
import pytest
import torch
from gradwire.kv import KVStore
from gradwire.torch.shared_state import digest_of, shared_lines
from python.inproc_ranks import run_ranks

RATE = 0.5


def adam() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_equal_states_have_equal_lines() -> None:
    assert shared_lines("model", adam()[0]) == shared_lines("model", adam()[0])
    assert shared_lines("optimizer", adam()[1]) == shared_lines("optimizer", adam()[1])


CHANGES: dict[str, tuple[Any, str]] = {
    "a learning rate": (lambda m, o: o.param_groups[0].update(lr=0.25), "lr of group 0 of optimizer="),
    "a NumPy learning rate": (
        lambda m, o: o.param_groups[0].update(lr=np.float32(0.25)),
        "lr of group 0 of optimizer=",
    ),
    "a pair": (lambda m, o: o.param_groups[0].update(betas=(0.5, 0.999)), "betas of group 0 of optimizer="),
    "a moment": (
        lambda m, o: next(iter(o.state.values()))["exp_avg"].mul_(2),
        "exp_avg of parameter 0 of optimizer=",
    ),
    "a step": (
        lambda m, o: next(iter(o.state.values()))["step"].add_(1),
        "step of parameter 0 of optimizer=",
    ),
    "a weight": (lambda m, o: m.weight.data.view(-1)[0].add_(1e-6), "weight of model="),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_is_a_line(change: str) -> None:
    first, (model, optimizer) = adam(), adam()
    changes, line = CHANGES[change]
    with torch.no_grad():
        changes(model, optimizer)
    before = shared_lines("model", first[0]) + shared_lines("optimizer", first[1])
    after = shared_lines("model", model) + shared_lines("optimizer", optimizer)
    differing = [theirs for ours, theirs in zip(before, after, strict=True) if ours != theirs]
    assert len(differing) == 1
    assert differing[0].startswith(line)


def test_what_is_a_ranks_own_is_no_line() -> None:
    """What its codec has not sent, and with momentum_correction its momentum."""

    def body(store: KVStore) -> None:
        weight = torch.nn.Parameter(torch.zeros(4, 4))
        optimizer = gw.torch.DistributedOptimizer(
            torch.optim.SGD([weight], lr=RATE, momentum=0.5),
            [("w", weight)],
            "2bit:threshold=0.5",
            store=store,
            momentum_correction=True,
        )
        (weight * (store.rank + 1)).sum().backward()
        optimizer.step()
        engine = store.engine
        engine.agree("shared", "".join(f"{line}\n" for line in shared_lines("optimizer", optimizer)))

    run_ranks(2, body)


def test_ranks_that_differ_hear_in_what() -> None:
    def body(store: KVStore) -> None:
        _, optimizer = adam()
        optimizer.param_groups[0]["lr"] = RATE * (store.rank + 1)
        with pytest.raises(
            ValueError, match=r"worker 0 has lr of group 0 of optimizer=0.5.*worker 1 has.*=1.0"
        ):
            store.engine.agree(
                "shared", "".join(f"{line}\n" for line in shared_lines("optimizer", optimizer))
            )

    run_ranks(2, body)


@pytest.mark.parametrize(
    "same",
    [
        lambda t: t.t().contiguous().t(),
        lambda t: t.to_sparse(),
        lambda t: t.clone().requires_grad_(),
        lambda t: torch.complex(t, t).conj().resolve_conj().real,
    ],
)
def test_a_digest_does_not_go_by_how_a_tensor_lies(same: Any) -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    assert digest_of(same(tensor)) == digest_of(tensor)


@pytest.mark.parametrize(
    "other", [torch.arange(6.0), torch.arange(6.0).reshape(2, 3).double(), torch.zeros(2, 3)]
)
def test_a_digest_goes_by_shape_dtype_and_elements(other: torch.Tensor) -> None:
    assert digest_of(other) != digest_of(torch.arange(6.0).reshape(2, 3))


def test_a_digest_of_no_element() -> None:
    assert digest_of(torch.zeros(0, 3)) != digest_of(torch.zeros(3, 0))
    assert digest_of(torch.tensor(1.0)) != digest_of(torch.tensor(2.0))
