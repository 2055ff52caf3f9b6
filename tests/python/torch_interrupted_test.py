"""Ctrl-C while an optimizer waits for the workers' means, caught by the training loop, as in a notebook. Ranks are
threads; the interruption is raised where the wait hears of it."""

from __future__ import annotations

import contextlib
import itertools
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from python.inproc_ranks import await_event, errors_of_ranks
from python.two_ranks import OneProcess, batch, require_equal, run_two, seeded, warnings_of_two, wrapped
from torch import nn

WAITS = (1, 2, 3)  # for float64, for what travels together, for rows


class Mixed(nn.Module):
    """Its gradients travel in all three ways."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 3, sparse=True)
        self.together = nn.Linear(3, 2)
        self.wide = nn.Linear(2, 1).double()

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.wide(self.together(self.table(ids) * x).double())
        return out


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    loss: torch.Tensor = model(torch.tensor([rank, 5]), batch(rank, step, 2, 3)).square().sum()
    return loss


@contextlib.contextmanager
def interrupted_in_wait(store: gw.kv.KVStore, number: int) -> Iterator[None]:
    """Has the user press Ctrl-C in the nth wait of a store, and expects to hear of it."""
    waits, calls = store.wait_until, itertools.count(1)

    def wait_until(ready: Any) -> None:
        if next(calls) == number:
            raise KeyboardInterrupt
        waits(ready)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "wait_until", wait_until)
        with pytest.raises(KeyboardInterrupt):
            yield


def named_table(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters() if name.startswith("table")]


@pytest.mark.parametrize("number", WAITS)
@pytest.mark.parametrize("brings", ["backward()", "step()"])
def test_a_step_that_goes_on_after_it_is_that_of_one_process(number: int, brings: str) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = seeded(Mixed)
        one = OneProcess(model, loss_of)
        optimizer = wrapped(model, store, sparse_parameters=named_table(model))
        for step in range(4):
            optimizer.zero_grad()
            stops = store.rank == 0 and step == 2
            if brings == "backward()":
                with interrupted_in_wait(store, number) if stops else contextlib.nullcontext():
                    loss_of(model, store.rank, step).backward()
            else:
                with optimizer.no_sync():
                    loss_of(model, store.rank, step).backward()
                with interrupted_in_wait(store, number) if stops else contextlib.nullcontext():
                    optimizer.step()
            if brings == "backward()" or stops:
                optimizer.step()
            one.step(step)
        require_equal(model, one.model)
        optimizer.close()

    run_two(body)


def test_when_all_workers_were_interrupted_and_leave_the_step_out_training_goes_on() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = seeded(Mixed)
        one = OneProcess(model, loss_of)
        optimizer = wrapped(model, store, sparse_parameters=named_table(model))
        for step in range(4):
            optimizer.zero_grad()
            if step == 1:
                with interrupted_in_wait(store, 1):
                    loss_of(model, store.rank, step).backward()
                continue
            loss_of(model, store.rank, step).backward()
            optimizer.step()
            one.step(step)
        require_equal(model, one.model)
        optimizer.close()

    told = warnings_of_two(body)
    assert told
    assert all("was interrupted" in text and "call step()" in text for text in told)


def test_one_worker_that_leaves_the_step_out_is_told_so_and_all_hear_that_steps_differ() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = seeded(Mixed)
        optimizer = wrapped(model, store, sparse_parameters=named_table(model))
        for step in range(3):
            optimizer.zero_grad()
            if step == 1 and store.rank == 0:
                with interrupted_in_wait(store, 2):
                    loss_of(model, store.rank, step).backward()
                continue
            loss_of(model, store.rank, step).backward()
            optimizer.step()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        errors = errors_of_ranks(2, body)
    assert sorted(errors) == [0, 1]
    for error in errors.values():  # whose frame came second is told
        one, other = (
            "0 is at step 2 of its program and worker 1 at",
            "1 is at step 3 of its program and worker 0 at",
        )
        assert f"worker {one} step 3" in str(error) or f"worker {other} step 2" in str(error)
    assert any(
        "workers that were not interrupted have, and are a step ahead" in str(w.message) for w in caught
    )


def test_a_backward_that_failed_is_ended_by_the_call_after_the_interrupted_one() -> None:
    def fails(_: torch.Tensor) -> None:
        raise RuntimeError("no memory")

    def body(store: gw.kv.KVStore) -> None:
        model = seeded(Mixed)
        one = OneProcess(model, loss_of)
        optimizer = wrapped(model, store, sparse_parameters=named_table(model), on_nonfinite="skip_step")
        for step in range(4):
            optimizer.zero_grad()
            if step == 1 and store.rank == 0:
                hook = model.together.weight.register_hook(fails)
                with pytest.raises(RuntimeError, match="no memory"):
                    loss_of(model, 0, step).backward()
                hook.remove()
                with interrupted_in_wait(store, 2):
                    optimizer.step()
            else:
                loss_of(model, store.rank, step).backward()
            optimizer.step()
            if step != 1:  # NaNs: no worker takes it
                one.step(step)
        require_equal(model, one.model)
        optimizer.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        run_two(body)


@pytest.mark.parametrize(("fragments", "merge_after", "stop"), [(1, 0, 3), (1, 1, 4), (2, 0, 3)])
@pytest.mark.parametrize("number", [1, 2])
def test_a_round_of_local_steps_goes_on_after_it(
    fragments: int, merge_after: int, stop: int, number: int
) -> None:
    def train(store: gw.kv.KVStore, *, stops: bool) -> nn.Module:
        model = seeded(lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, bias=False), nn.Linear(2, 1)))
        optimizer = gw.torch.LocalStepOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05),
            model.named_parameters(),
            store=store,
            sync_every=2,
            fragments=fragments,
            merge_after=merge_after,
        )
        for step in range(8):
            optimizer.zero_grad()
            model(batch(store.rank, step, 2, 3)).square().sum().backward()
            with interrupted_in_wait(store, number) if stops and step == stop else contextlib.nullcontext():
                optimizer.step()
            if step == stop:
                optimizer.state_dict()  # waits for what is left
        optimizer.synchronize()
        optimizer.close()
        return model

    def body(store: gw.kv.KVStore) -> None:
        whole, stopped = (train(store, stops=stops and store.rank == 0) for stops in (False, True))
        require_equal(stopped, whole)

    run_two(body)


class Named(nn.Parameter):
    """A class of the user's: overlap_step cannot guard it, and waits for its sum at the end of backward()."""


@pytest.mark.parametrize("brings", ["backward()", "forward()"])
def test_with_overlap_step_too_it_goes_on(brings: str) -> None:
    stopped = threading.Event()

    def body(store: gw.kv.KVStore) -> None:
        model = seeded(lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)))
        if brings == "backward()":
            model[1].weight = Named(model[1].weight.detach())
        one = OneProcess(model, lambda m, rank, step: m(batch(rank, step, 2, 3)).square().sum())
        optimizer = wrapped(model, store, overlap_step=True)
        for step in range(4):
            stops = store.rank == 0 and step == 2
            if stops and brings == "forward()":
                with interrupted_in_wait(store, 1):
                    model(batch(store.rank, step, 2, 3))
                stopped.set()
            optimizer.zero_grad()
            loss = model(batch(store.rank, step, 2, 3)).square().sum()
            if store.rank == 1 and step == 1 and brings == "forward()":
                await_event(stopped, "the interruption")  # else the sums might be there, and nobody waits
            with (
                interrupted_in_wait(store, 1)
                if stops and brings == "backward()"
                else contextlib.nullcontext()
            ):
                loss.backward()
            optimizer.step()
            one.step(step)
        optimizer.synchronize()
        require_equal(model, one.model)
        optimizer.close()

    run_two(body)
