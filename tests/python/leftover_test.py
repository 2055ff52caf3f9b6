"""What a lossy codec has not sent goes with the next gradient once a codec without loss follows, whoever changes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradwire as gw
import numpy as np
import pytest
import torch
from gradwire.kv import KVStore
from numpy.testing import assert_allclose
from python.inproc_ranks import run_ranks

CODEC = "2bit:threshold=0.5"


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


def exchanged(store: KVStore, key: str, *values: float) -> Any:
    out = np.zeros(len(values), np.float32)
    store.push(key, floats(*values))
    store.pull(key, out)
    return out


# ------------------------------------------------------------------------------------- kv


@pytest.mark.parametrize("workers", [1, 2])
def test_none_sends_what_is_left(workers: int) -> None:
    def body(store: KVStore) -> None:
        store.init("w", floats(0, 0))
        store.set_gradient_compression(CODEC)
        assert_allclose(exchanged(store, "w", 3, -0.25), floats(0.5, 0) * workers)
        store.set_gradient_compression("none")
        assert_allclose(exchanged(store, "w", 0, 1), floats(2.5, 0.75) * workers)
        assert_allclose(exchanged(store, "w", 0, 1), floats(0, 1) * workers)
        assert store.stats()["residual_norm"] == 0

    run_ranks(workers, body)


@pytest.mark.parametrize("name", ["local", "device"])
def test_devices_of_one_worker_send_what_is_left(name: str) -> None:
    store = gw.kv.create(name)
    store.init("w", floats(0, 0))
    store.set_gradient_compression(CODEC)
    out = floats(0, 0)
    store.pushpull("w", [floats(3, 0.25), floats(0.25, 0.25)], out=out)
    assert_allclose(out, floats(0.5, 0))
    store.set_gradient_compression("none")
    store.pushpull("w", floats(1, 0), out=out)  # of one device, and what two have left
    assert_allclose(out, floats(3.75, 0.5))
    assert store.stats()["residual_norm"] == 0
    store.pushpull("w", floats(1, 0), out=out)
    assert_allclose(out, floats(1, 0))
    store.close()


def test_a_value_that_is_not_finite_keeps_its_devices_residual() -> None:
    store = gw.kv.create("local")
    store.init("w", floats(0, 0))
    store.set_gradient_compression(CODEC)
    store.push("w", floats(0.25, 0.25))
    store.set_gradient_compression("none")
    assert_allclose(exchanged(store, "w", np.nan, 1), floats(np.nan, 1.25))
    assert_allclose(exchanged(store, "w", 0, 0), floats(0.25, 0))
    store.close()


def test_tables_send_what_is_left_of_all_rows() -> None:
    def body(store: KVStore) -> None:
        store.init("table", gw.RowSparse([], [], (4, 2)))
        store.set_gradient_compression(CODEC)
        out = gw.RowSparse([], [])
        store.pushpull("table", gw.RowSparse([1, 3], np.array([[0.25, 0], [3, 0]], np.float32)), out=out)
        store.set_gradient_compression("none")
        store.pushpull("table", gw.RowSparse([0], np.ones((1, 2), np.float32)), out=out)
        assert out.row_ids.tolist() == [0, 1, 3]
        assert_allclose(out.rows, 2 * np.array([[1, 1], [0.25, 0], [2.5, 0]]))

    run_ranks(2, body)


# ------------------------------------------------------------------------------------- torch


def one_weight() -> tuple[torch.nn.ParameterList, torch.nn.Parameter]:
    weight = torch.nn.Parameter(torch.zeros(4, 4))
    return torch.nn.ParameterList([weight]), weight


def wrapped(store: KVStore, weight: torch.nn.Parameter, compression: str | None) -> Any:
    return gw.torch.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0), [("w", weight)], compression, store=store
    )


def step(optimizer: Any, weight: torch.nn.Parameter, gradient: float) -> None:
    optimizer.zero_grad()
    (weight * gradient).sum().backward()
    optimizer.step()


def after_a_step(store: KVStore) -> tuple[torch.nn.Parameter, Any]:
    """A weight, and the state of the optimizer that has taken a step of it and has something left."""
    _, weight = one_weight()
    optimizer = wrapped(store, weight, CODEC)
    step(optimizer, weight, 3.0)
    state = optimizer.state_dict()
    optimizer.close()
    return weight, state


def with_local_steps(store: KVStore, weight: torch.nn.Parameter, codec: str) -> Any:
    return gw.torch.LocalStepOptimizer(
        torch.optim.SGD([weight], lr=1.0),
        [("w", weight)],
        codec,
        store=store,
        sync_every=1,
        outer=lambda weights: torch.optim.SGD(weights, lr=1.0),
    )


def test_a_lossy_checkpoint_goes_on_without_compression(tmp_path: Path) -> None:
    def save(store: KVStore) -> None:
        model, weight = one_weight()
        optimizer = wrapped(store, weight, CODEC)
        step(optimizer, weight, 3.0)
        gw.torch.save_checkpoint(tmp_path, model, optimizer)

    def load(store: KVStore) -> None:
        model, weight = one_weight()
        optimizer = wrapped(store, weight, "none")
        gw.torch.load_checkpoint(tmp_path, model, optimizer)
        step(optimizer, weight, 0.0)
        assert_allclose(weight.detach().numpy(), -3.0)

    run_ranks(2, save)
    run_ranks(2, load)


def test_a_change_of_the_stores_codec_under_an_optimizer() -> None:
    def body(store: KVStore) -> None:
        _, weight = one_weight()
        optimizer = wrapped(store, weight, None)
        store.set_gradient_compression(CODEC)
        step(optimizer, weight, 3.0)
        store.set_gradient_compression("none")
        step(optimizer, weight, 1.0)
        assert_allclose(weight.detach().numpy(), -4.0)

    run_ranks(2, body)


def test_an_optimizers_state_goes_on_without_compression() -> None:
    def body(store: KVStore) -> None:
        weight, state = after_a_step(store)
        second = wrapped(store, weight, "none")
        second.load_state_dict(state)
        step(second, weight, 0.0)
        assert_allclose(weight.detach().numpy(), -3.0)

    run_ranks(2, body)


def test_a_state_that_one_rank_loads_and_the_others_are_sent() -> None:
    """As Horovod scripts go on, here with another codec: what rank 0 has not sent goes along, and ranks stay alike."""

    def body(store: KVStore) -> None:
        weight, state = after_a_step(store)
        second = wrapped(store, weight, "none")
        if store.rank == 0:
            second.load_state_dict(state)
        gw.torch.broadcast_parameters([("w", weight)], store=store)
        gw.torch.broadcast_optimizer_state(second, store=store)
        step(second, weight, 1.0)
        assert_allclose(weight.detach().numpy(), -0.5 - (1.0 + 1.0 + 2.5) / 2)
        step(second, weight, 1.0)
        assert_allclose(weight.detach().numpy(), -3.75)

    run_ranks(2, body)


def test_a_rank_that_runs_out_as_a_codec_gives_way_to_none() -> None:
    """The others take steps without it, and then all step alike."""

    def body(store: KVStore) -> None:
        _, weight = one_weight()
        optimizer = gw.torch.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0), [("w", weight)], "none", store, warm_up=[(CODEC, 2)]
        )
        for _ in range(2):
            step(optimizer, weight, 1.0)
        if store.rank == 0:
            step(optimizer, weight, 1.0)
        last = optimizer.join()
        gw.torch.broadcast_parameters([("w", weight)], root_rank=last, store=store)
        gw.torch.broadcast_optimizer_state(optimizer, root_rank=last, store=store)
        found = store.collectives.all_gather(weight.detach().numpy())
        assert_allclose(found[0], found[1])
        step(optimizer, weight, 1.0)
        found = store.collectives.all_gather(weight.detach().numpy())
        assert_allclose(found[0], found[1])

    run_ranks(2, body)


def test_local_steps_saved_with_a_codec_go_on_without(tmp_path: Path) -> None:
    def body(store: KVStore, codec: str, load: bool) -> None:
        model, weight = one_weight()
        optimizer = with_local_steps(store, weight, codec)
        if load:
            gw.torch.load_checkpoint(tmp_path, model, optimizer)
            step(optimizer, weight, 0.0)
            assert_allclose(weight.detach().numpy(), -3.0)
        else:
            step(optimizer, weight, 3.0)
            gw.torch.save_checkpoint(tmp_path, model, optimizer)

    run_ranks(2, lambda store: body(store, CODEC, False))
    run_ranks(2, lambda store: body(store, "none", True))


def test_local_steps_send_what_is_left() -> None:
    def body(store: KVStore) -> None:
        _, weight = one_weight()

        def rounds(codec: str, state: Any) -> Any:
            optimizer = with_local_steps(store, weight, codec)
            if state is not None:
                optimizer.load_state_dict(state)
            step(optimizer, weight, 3.0 if state is None else 0.0)
            found = optimizer.state_dict()
            optimizer.close()
            return found

        rounds("none", rounds(CODEC, None))
        assert_allclose(weight.detach().numpy(), -3.0)

    run_ranks(2, body)
