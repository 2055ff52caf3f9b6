"""LocalStepOptimizer's state_dict(): what goes on from it, and in the middle of what. Ranks are threads."""

from __future__ import annotations

import copy
import io
import threading
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from python.inproc_ranks import run_ranks
from python.local_steps_net import FRESH, Net, adamw, require_equal, take_steps, wrap
from torch import nn


@pytest.mark.parametrize("compression", ["none", "int4:reply=fp32"])
@pytest.mark.parametrize("stop", [5, 7], ids=["under way", "between"])
@pytest.mark.parametrize("frozen_after", [2, 4, 99], ids=["frozen", "frozen under way", "live"])
def test_a_restored_run_has_the_bits_of_one_that_never_stopped(
    compression: str, stop: int, frozen_after: int
) -> None:
    options: dict[str, Any] = {"compression": compression, "codecs": {"*": compression}}
    options |= {"sync_every": 4, "fragments": 2, "merge_after": 2}
    saved: dict[int, bytes] = {}
    whole: dict[int, nn.Module] = {}

    def never_stopped(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(model, store, **options)
        take_steps(model, optimizer, store.rank, range(1, min(stop, frozen_after) + 1))
        model.second.requires_grad_(stop < frozen_after)
        take_steps(model, optimizer, store.rank, range(frozen_after + 1, stop + 1))
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        saved[store.rank] = file.getvalue()
        take_steps(model, optimizer, store.rank, range(stop + 1, 16))
        optimizer.synchronize()
        whole[store.rank] = model

    def restored(store: gw.kv.KVStore) -> None:
        model = Net()
        optimizer = wrap(model, store, **options)
        model.second.requires_grad_(stop < frozen_after)
        state = torch.load(io.BytesIO(saved[store.rank]), weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        take_steps(model, optimizer, store.rank, range(stop + 1, 16))
        optimizer.synchronize()
        require_equal(model, whole[store.rank])

    run_ranks(2, never_stopped)
    run_ranks(2, restored)


def test_a_state_is_not_written_over_by_means_that_were_under_way() -> None:
    loaded = threading.Event()

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(model, store, sync_every=4, merge_after=2)
        take_steps(model, optimizer, store.rank, range(1, 5))
        saved = copy.deepcopy(optimizer.state_dict())
        take_steps(model, optimizer, store.rank, range(5, 8))
        if store.rank == 1:
            loaded.wait(0.5)  # a load that does not wait for this rank is over then
        take_steps(model, optimizer, store.rank, range(8, 9))
        optimizer.load_state_dict(saved)
        loaded.set()
        store.barrier()
        (before,), (after,) = (
            state["gradwire"]["local_steps"]["under_way"].values()
            for state in (saved, optimizer.state_dict())
        )
        assert all(torch.equal(after["means"][name], mean) for name, mean in before["means"].items())

    run_ranks(2, body)


def test_a_state_of_another_schedule_is_for_the_end_of_a_round(local_store: gw.kv.KVStore) -> None:
    model = copy.deepcopy(FRESH)
    optimizer = wrap(model, local_store, sync_every=4)
    take_steps(model, optimizer, 0, range(1, 3))
    middle = copy.deepcopy(optimizer.state_dict())
    optimizer.synchronize()
    end = copy.deepcopy(optimizer.state_dict())
    other = wrap(copy.deepcopy(model), local_store, sync_every=6)
    with pytest.raises(
        ValueError, match=r"\[4, 1, 0\], this optimizer has \[6, 1, 0\]; use the same, or call"
    ):
        other.load_state_dict(middle)
    other.load_state_dict(end)
    with pytest.raises(ValueError, match=r"'bias' has shape None, the optimizer's \(2,\)"):
        wrap(nn.Linear(2, 2), local_store, sync_every=4).load_state_dict(end)


def test_a_plain_optimizers_state_begins_rounds_anew(local_store: gw.kv.KVStore) -> None:
    trained, model = copy.deepcopy(FRESH), copy.deepcopy(FRESH)
    plain = adamw(trained.parameters())
    take_steps(trained, plain, 0, range(1, 4))
    optimizer = wrap(model, local_store, sync_every=4)
    take_steps(model, optimizer, 0, range(1, 3))
    model.load_state_dict(trained.state_dict())
    optimizer.load_state_dict(plain.state_dict())
    with optimizer.shared_weights():
        require_equal(model, trained)
    take_steps(model, optimizer, 0, range(4, 8))
    assert optimizer.state_dict()["gradwire"]["local_steps"]["step"] == 4
    assert len(optimizer.outer.state) == 6  # a momentum each
