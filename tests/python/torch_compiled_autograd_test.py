"""Compiled autograd does not tell when a backward() ends: it is refused in words."""

from __future__ import annotations

from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from python.inproc_ranks import run_ranks
from python.two_ranks import wrapped
from torch import nn
from torch._dynamo import compiled_autograd


def as_it_is(graph: Any) -> Any:
    return graph


@pytest.mark.parametrize("options", [{}, {"overlap_step": True}], ids=str)
def test_it_is_refused(options: dict[str, Any]) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = nn.Linear(3, 2)
        optimizer = wrapped(model, store, **options)
        loss = model(torch.ones(1, 3)).sum()
        with (
            compiled_autograd._enable(as_it_is),
            pytest.raises(RuntimeError, match=r"cannot be combined with compiled autograd"),
        ):
            loss.backward()
        optimizer.zero_grad()
        with optimizer.no_sync(), compiled_autograd._enable(as_it_is):  # nothing is exchanged
            model(torch.ones(1, 3)).sum().backward()
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()  # and outside it all is well
        optimizer.step()
        optimizer.synchronize()
        assert torch.equal(model.weight.grad, torch.ones(2, 3))
        optimizer.close()

    run_ranks(1, body)
