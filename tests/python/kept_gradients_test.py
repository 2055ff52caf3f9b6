"""A gradient that is kept across zero_grad() keeps its values, as with torch, where the next one is another tensor."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from python.inproc_ranks import run_ranks
from python.two_ranks import batch, seeded, wrapped
from torch import nn


def gradients(model: nn.Module, optimizer: Any, ranks: list[int], step: int) -> list[torch.Tensor]:
    optimizer.zero_grad()
    (sum(model(batch(rank, step, 2, 3)).square().mean() for rank in ranks) / len(ranks)).backward()
    if hasattr(optimizer, "synchronize"):
        optimizer.synchronize()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("overlap_step", [False, True])
def test_two_losses_have_gradients_of_their_own(overlap_step: bool) -> None:
    """As for PCGrad, or the cosine between steps; bit for bit what one process has."""

    def body(store: gw.kv.KVStore) -> None:
        model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)))
        alone = copy.deepcopy(model)
        optimizer = wrapped(model, store, overlap_step=overlap_step)
        plain = torch.optim.SGD(alone.parameters(), lr=0.1)
        kept, right = [], []
        for step in range(4):
            kept.append(gradients(model, optimizer, [store.rank], step))
            optimizer.synchronize()
            right.append(gradients(alone, plain, [0, 1], step))
            for ours, theirs in zip(kept, right, strict=True):
                torch.testing.assert_close(ours, theirs)
            optimizer.step()
            plain.step()
        optimizer.close()

    run_ranks(2, body)


@pytest.mark.parametrize(
    "view",
    [torch.Tensor.detach, lambda g: g.view(-1), lambda g: g[1:], lambda g: torch.from_numpy(g.numpy())],
)
def test_a_view_is_right_from_the_second_time_on(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Its memory cannot be exchanged; a warning says so."""
    texts = []

    def body(store: gw.kv.KVStore) -> None:
        model = seeded(lambda: nn.Linear(3, 4))
        optimizer = wrapped(model, store)
        kept: list[torch.Tensor] = []  # a view, and the values that it had
        for step in range(4):
            weight = gradients(model, optimizer, [store.rank], step)[0]
            assert step < 2 or torch.equal(*kept)
            kept = [view(weight), view(weight).clone()]
            del weight
        optimizer.close()

    def note(message: Any, *_: Any, **__: Any) -> None:
        texts.append(str(message))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warnings, "warn", note)
        run_ranks(2, body)
    assert len(texts) == 2  # once a rank
    assert all("a view of the gradient of 'weight'" in text for text in texts)


def test_what_is_not_kept_stays_the_memory_in_which_it_travels() -> None:
    """Without a copy: the check does not take an ordinary loop for one that keeps gradients."""

    def body(store: gw.kv.KVStore) -> None:
        model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)))
        optimizer = wrapped(model, store, lambda p: torch.optim.AdamW(p, lr=0.1))
        places = []
        for step in range(4):
            gradients(model, optimizer, [store.rank], step)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            places.append([p.grad.data_ptr() for p in model.parameters() if p.grad is not None])
        assert places == [places[0]] * 4
        optimizer.close()

    run_ranks(2, body)
