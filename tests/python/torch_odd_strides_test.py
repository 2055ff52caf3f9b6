"""Tensors of one element: contiguous to torch whatever their strides are, and none of its views as bytes takes them."""

from __future__ import annotations

from collections.abc import Callable

import gradwire as gw
import gradwire.torch
import pytest
import torch
from gradwire.torch.shared_state import digest_of
from python.inproc_ranks import run_ranks

MAKE: dict[str, Callable[[float], torch.Tensor]] = {
    "a corner": lambda value: torch.full((3, 2), value).t()[:1, :1],
    "every third": lambda value: torch.full((3,), value)[::3],
    "expanded": lambda value: torch.full((1,), value).expand(3),
    "complex, conjugated": lambda value: torch.full((3,), complex(value, -value)).conj()[::3],
}


@pytest.mark.parametrize("kind", MAKE)
def test_they_are_broadcast_as_a_parameter_and_as_state(kind: str) -> None:
    def body(store: gw.kv.KVStore) -> None:
        ours, roots = MAKE[kind](1.0 + store.rank), MAKE[kind](2.0)
        gw.torch.broadcast_parameters({"one": ours}, root_rank=1, store=store)
        torch.testing.assert_close(ours, roots, rtol=0, atol=0)

        weight = torch.nn.Parameter(torch.zeros(1, dtype=roots.dtype))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        optimizer.state[weight]["one"] = MAKE[kind](1.0 + store.rank)
        gw.torch.broadcast_optimizer_state(optimizer, root_rank=1, store=store)
        torch.testing.assert_close(optimizer.state[weight]["one"].resolve_conj(), roots.resolve_conj())

    run_ranks(2, body)


@pytest.mark.parametrize("kind", MAKE)
def test_their_digest_is_that_of_a_copy(kind: str) -> None:
    one = MAKE[kind](1.0)
    assert digest_of(one) == digest_of(one.resolve_conj().clone(memory_format=torch.contiguous_format))
    assert digest_of(one) != digest_of(MAKE[kind](2.0))
