"""overlap_step beside other threads, forked processes and failures: nobody hangs, and nothing is left behind."""

from __future__ import annotations

import copy
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from gradwire.torch.overlapping.parameter_guard import keeper_of, release
from python.inproc_ranks import await_event, run_ranks
from python.overlapping_net import Net, compressing_store, loss_of, make, under_way, wrap
from torch import nn


@pytest.fixture
def store() -> Iterator[gw.kv.KVStore]:
    with compressing_store() as opened:
        yield opened


class LetsGoWhenLookedAt(list[nn.Parameter]):
    """As when another thread takes their sums in, just after somebody has found them guarded."""

    def __iter__(self) -> Iterator[nn.Parameter]:
        yield from super().__iter__()
        for parameter in super().__iter__():
            release(parameter)


def test_a_parameter_that_another_thread_has_released_meanwhile_is_read(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store)
    loss_of(model, 0).backward()
    assert torch.stack(LetsGoWhenLookedAt([model.first.bias])).shape == (1, 6)
    optimizer.close()


def test_a_step_that_ends_beside_a_copy_leaves_no_guard(store: gw.kv.KVStore) -> None:
    """Another thread steps at the moment at which the parameter is torch's own."""
    model = make()
    optimizer = wrap(model, store)
    loss_of(model, 0).backward()

    def finish() -> None:
        optimizer.step()
        optimizer.synchronize()

    other = threading.Thread(target=finish)

    class Memo(dict[int, Any]):
        def get(self, key: int, default: Any = None) -> Any:
            if type(model.first.weight) is nn.Parameter and other.ident is None:
                other.start()
                other.join(0.3)
            return super().get(key, default)

    copied = copy.deepcopy(model.first.weight, Memo())
    other.join()
    assert not under_way(model)
    assert torch.equal(copied, make().first.weight)
    optimizer.close()


def test_threads_may_read_while_sums_arrive(store: gw.kv.KVStore) -> None:
    """As a thread that serves, and one that keeps an average, beside the one that trains."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
    optimizer = wrap(model, store)
    done, failures = threading.Event(), []

    def read() -> None:
        try:
            while not done.is_set():
                nn.utils.parameters_to_vector(model.parameters())
                copy.deepcopy(model[-1].weight)
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for each in readers:
        each.start()
    for seed in range(20):
        optimizer.zero_grad()
        loss_of(model, seed).backward()
        optimizer.step()
    done.set()
    for each in readers:
        each.join()
    optimizer.close()
    assert not failures


def test_a_forked_process_is_told_instead_of_waiting_for_ever(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store)
    loss_of(model, 0).backward()
    child = os.fork()
    if child == 0:  # where nothing of pytest is to run
        try:
            optimizer.synchronize()
        except RuntimeError as error:
            os._exit(0 if "was forked" in str(error) else 2)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    optimizer.step()
    optimizer.close()


@pytest.mark.parametrize("call", ["synchronize", "step", "zero_grad", "read", "copy"])
def test_a_process_that_is_forked_while_another_thread_takes_sums_in_does_not_hang(
    call: str, store: gw.kv.KVStore
) -> None:
    model = make()
    optimizer = wrap(model, store)
    loss_of(model, 0).backward()
    if call in ("read", "copy"):
        optimizer.step()
    kept = [p for p in model.parameters() if keeper_of(p) is not None]
    held, release_it = threading.Event(), threading.Event()

    def hold() -> None:
        with optimizer._reducer.overlap._lock:
            held.set()
            release_it.wait()

    other = threading.Thread(target=hold)
    other.start()
    await_event(held, "the other thread")
    child = os.fork()
    if child == 0:  # where nothing of pytest is to run
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)
        use = {"read": lambda: kept and kept[0].sum(), "copy": lambda: kept and copy.deepcopy(kept[0])}
        try:
            use.get(call, getattr(optimizer, call, None))()
        except RuntimeError as error:
            os._exit(0 if "was forked" in str(error) else 2)
        os._exit(0 if not kept else 1)
    release_it.set()
    other.join()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    optimizer.step()
    optimizer.close()


def test_the_optimizer_is_kept_while_a_step_is_under_way() -> None:
    """As by a function that trains and returns the model."""
    left = threading.Event()

    def weights_after(store: gw.kv.KVStore) -> Net:
        model = make()
        optimizer = wrap(model, store)
        loss = loss_of(model, store.rank)
        if store.rank == 1:
            await_event(left, "the end of rank 0's function")
        loss.backward()
        optimizer.step()
        return model

    def train(store: gw.kv.KVStore) -> None:
        model = weights_after(store)
        left.set()
        assert not torch.equal(model.first.weight, make().first.weight)
        assert not torch.equal(model.second.weight, make().second.weight)

    run_ranks(2, train)


def test_closing_the_store_ends_the_step(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store)
    loss_of(model, 0).backward()
    optimizer.step()
    store.close()
    assert not under_way(model)
    assert not torch.equal(model.first.weight, make().first.weight)


def test_after_a_failure_weights_can_be_read_once_it_is_said_that_a_step_is_in_part() -> None:
    stepped = threading.Event()

    def train(store: gw.kv.KVStore) -> None:
        model = make()
        optimizer = wrap(model, store)
        if store.rank == 1:  # leaves in the middle of the job
            assert stepped.wait(300)
            return
        loss_of(model, 0).backward()
        optimizer.step()
        stepped.set()
        for _ in range(2):
            with pytest.raises(
                gw.TransportError, match=r"worker 1 left.*optimizer\.close\(\) to read weights.*in part"
            ):
                model.state_dict()["first.weight"].sum()
        with pytest.warns(RuntimeWarning, match=r"4 of 4 parameters .* without the last step"):
            optimizer.close()
        assert torch.equal(model.first.weight, make().first.weight)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.close()

    run_ranks(2, train)


class Fails(torch.optim.SGD):
    """SGD that does not step while told so."""

    is_told_to = True

    def step(self, closure: Any = None) -> Any:
        if self.is_told_to:
            raise ArithmeticError("as told")
        return super().step(closure)


def test_an_update_that_raises_is_told_until_close_and_leaves_nothing_for_the_next_step(
    store: gw.kv.KVStore,
) -> None:
    """Weights with the step and without are not to be trained on unawares."""
    hooks = dict(nn.modules.module._global_forward_pre_hooks)
    model, plain = make(), make()

    def wrapped() -> Any:
        inner = Fails(model.parameters(), lr=0.1, momentum=0.9)
        return gw.torch.DistributedOptimizer(
            inner, model.named_parameters(), store=store, overlap_step=True, codecs={"*": "none"}
        )

    optimizer = wrapped()
    loss_of(model, 0).backward()

    def step_to_its_end() -> None:
        optimizer.step()
        optimizer.synchronize()

    with pytest.raises(ArithmeticError, match="as told"):
        step_to_its_end()
    optimizer.is_told_to = False
    for read in (
        lambda: loss_of(model, 1),
        lambda: model.first.weight.sum(),
        model.state_dict,
        optimizer.synchronize,
        optimizer.step,
        optimizer.state_dict,
    ):
        with pytest.raises(
            RuntimeError, match=r"without the last step.*: as told .*optimizer\.close\(\) to read"
        ):
            read()
    with pytest.warns(RuntimeWarning, match=r"4 of 4 parameters .* without the last step"):
        optimizer.close()
    assert not under_way(model)
    assert nn.modules.module._global_forward_pre_hooks == hooks
    assert torch.equal(model.first.weight, plain.first.weight)
    optimizer, oracle = wrapped(), torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    optimizer.is_told_to = False
    for each, weights in ((optimizer, model), (oracle, plain)):
        each.zero_grad()
        loss_of(weights, 1).backward()
        each.step()
    torch.testing.assert_close(list(model.parameters()), list(plain.parameters()), rtol=0, atol=0)
    optimizer.close()
