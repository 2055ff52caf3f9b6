"""Tensors whose memory is not their numbers: lazily conjugated ones travel, and what has no memory is one error on all
ranks, after which they are still at the same call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradwire as gw
import gradwire.torch
import numpy as np
import pytest
import torch
from gradwire.kv import KVStore
from python.inproc_ranks import run_ranks
from torch._subclasses import FakeTensorMode

pytestmark = pytest.mark.usefixtures("no_job")


def numbers(rank: int) -> torch.Tensor:
    return torch.tensor([1 + 2j, 3 - 1j, -2 + 0.5j, 4j]) * (rank + 1)


def lazy(rank: int) -> torch.Tensor:
    """Rank 1's is conjugated without a copy."""
    return numbers(rank).conj() if rank == 1 else numbers(rank)


GIVEN = [numbers(0), numbers(1).conj().resolve_conj()]
TOTAL = GIVEN[0] + GIVEN[1]

VERBS: dict[str, tuple[Callable[[KVStore, torch.Tensor], Any], Callable[[int], Any]]] = {
    "all_reduce": (lambda store, x: store.collectives.all_reduce(x), lambda rank: TOTAL),
    "reduce_scatter": (
        lambda store, x: store.collectives.reduce_scatter(x),
        lambda rank: TOTAL[2 * rank : 2 * rank + 2],
    ),
    "all_gather": (
        lambda store, x: torch.stack(store.collectives.all_gather(x)),
        lambda rank: torch.stack(GIVEN),
    ),
    "all_to_all": (
        lambda store, x: torch.stack(store.collectives.all_to_all([x[:2], x[2:]])),
        lambda rank: torch.stack([each[2 * rank : 2 * rank + 2] for each in GIVEN]),
    ),
    "pushpull": (lambda store, x: pushed(store, x), lambda rank: TOTAL),
}


def pushed(store: KVStore, value: torch.Tensor) -> torch.Tensor:
    store.init("x", torch.zeros(4, dtype=torch.complex64))
    out = torch.zeros(4, dtype=torch.complex64)
    store.pushpull("x", value, out)
    return out


@pytest.mark.parametrize("verb", VERBS)
def test_a_conjugated_view_travels_as_its_numbers(verb: str) -> None:
    call, expected = VERBS[verb]

    def body(store: KVStore) -> None:
        assert torch.equal(call(store, lazy(store.rank)), expected(store.rank))
        assert store.collectives.all_reduce(np.ones(1, np.float32)) == 2

    run_ranks(2, body)


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(4)


def jagged() -> torch.Tensor:
    made: torch.Tensor = torch.nested.nested_tensor([torch.ones(1), torch.ones(3)], layout=torch.jagged)
    return made


COMPLEX = torch.zeros(4, dtype=torch.complex64)
REFUSED: dict[str, tuple[Callable[[KVStore, bool], Any], str]] = {
    "all_reduce, out": (
        lambda store, odd: store.collectives.all_reduce(
            numbers(0), out=COMPLEX.clone().conj() if odd else COMPLEX.clone()
        ),
        "a lazy view of conjugates",
    ),
    "broadcast": (
        lambda store, odd: store.collectives.broadcast(COMPLEX.clone().conj() if odd else COMPLEX.clone()),
        "a lazy view of conjugates",
    ),
    "all_reduce": (
        lambda store, odd: store.collectives.all_reduce(fake() if odd else torch.ones(4)),
        "subclass",
    ),
    "reduce_scatter": (
        lambda store, odd: store.collectives.reduce_scatter(fake() if odd else torch.ones(4)),
        "subclass",
    ),
    "all_gather": (
        lambda store, odd: store.collectives.all_gather(fake() if odd else torch.ones(4)),
        "subclass",
    ),
    "all_to_all": (
        lambda store, odd: store.collectives.all_to_all([fake() if odd else torch.ones(4)] * 2),
        "subclass",
    ),
    "broadcast_parameters": (
        lambda store, odd: gw.torch.broadcast_parameters({"w": jagged() if odd else torch.ones(4)}, 0, store),
        "SymInt",
    ),
}


@pytest.mark.parametrize("verb", REFUSED)
def test_one_ranks_tensor_is_refused_on_all(verb: str) -> None:
    call, words = REFUSED[verb]
    texts = ["", ""]

    def body(store: KVStore) -> None:
        with pytest.raises((ValueError, TypeError)) as raised:
            call(store, store.rank == 1)
        assert not isinstance(raised.value, ConnectionError)
        texts[store.rank] = str(raised.value)
        assert store.collectives.all_reduce(np.ones(1, np.float32)) == 2

    run_ranks(2, body)
    assert texts[1] in texts[0]  # which says whose it is
    assert words in texts[1]


def test_a_conjugated_view_is_not_written_to(local_store: KVStore) -> None:
    local_store.init("x", torch.zeros(4, dtype=torch.complex64))
    local_store.push("x", numbers(0))
    for call in (
        lambda out: local_store.pull("x", out),
        lambda out: local_store.pushpull("x", numbers(0), out),
    ):
        with pytest.raises(ValueError, match="out of key 'x' is a lazy view of conjugates"):
            call(torch.zeros(4, dtype=torch.complex64).conj())
