"""What is wrong with one rank's call of a collective, or with its tensors, is one error on all ranks; the job lives."""

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


def broadcast(store: KVStore, tensor: torch.Tensor, name: str = "table", root: int = 0) -> None:
    gw.torch.broadcast_parameters({"first": torch.ones(2), name: tensor}, root, store)


# ------------------------------------------------------------------------------------- unusual tensors that travel


def conjugated(rank: int) -> torch.Tensor:
    return torch.tensor([1 + 2j, 3 - 1j]).mul(rank + 1).conj()


UNUSUAL: dict[str, Callable[[int], torch.Tensor]] = {
    "expanded": lambda rank: (torch.arange(4) + 10 * rank).expand(2, 4),  # as position ids of transformers
    "expanded twice": lambda rank: torch.full((1, 3, 1), float(rank)).expand(2, 3, 4),
    "conj": conjugated,
    "neg": lambda rank: conjugated(rank).imag,
    "strided": lambda rank: torch.full((6, 4), float(rank))[::2, ::2],
    "transposed": lambda rank: (torch.arange(6.0) + rank).view(2, 3).t(),
    "a scalar": lambda rank: torch.tensor(float(rank)),
    "without elements": lambda rank: torch.zeros(0, 3),
    "a leaf": lambda rank: torch.full((3,), float(rank), requires_grad=True),
    "bool": lambda rank: torch.tensor([True, False]) ^ (rank == 1),
    "complex128": lambda rank: torch.full((2,), complex(rank, 1), dtype=torch.complex128),
}


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("root", [0, 1])
def test_all_get_the_roots(kind: str, root: int) -> None:
    def body(store: KVStore) -> None:
        tensor = UNUSUAL[kind](store.rank)
        layout = tensor.stride()
        broadcast(store, tensor, root=root)
        assert torch.equal(tensor.detach().resolve_conj(), UNUSUAL[kind](root).detach().resolve_conj())
        assert tensor.stride() == layout

    run_ranks(2, body)


# ------------------------------------------------------------------------------------- those that are refused


def errors_of(call: Callable[[KVStore], Any], ranks: int = 2) -> list[str]:
    """What each rank gets; the store serves the next collective all the same."""
    found = [""] * ranks

    def body(store: KVStore) -> None:
        with pytest.raises((ValueError, TypeError)) as raised:
            call(store)
        assert not isinstance(raised.value, ConnectionError)
        found[store.rank] = str(raised.value)
        store.barrier()
        assert store.collectives.all_reduce(np.ones(1, np.float32)) == ranks

    run_ranks(ranks, body)
    return found


REFUSED: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "torch.sparse_coo"),
    "csr": (lambda: torch.eye(3).to_sparse_csr(), "torch.sparse_csr"),
    "meta": (lambda: torch.zeros(3, device="meta"), "on the meta device"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "quantized",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_tensor_without_memory_of_its_own_is_named_on_all_ranks(kind: str) -> None:
    make, words = REFUSED[kind]
    errors = errors_of(lambda store: broadcast(store, make()))
    assert len(set(errors)) == 1, errors
    assert "'table'" in errors[0]
    assert words in errors[0]


def test_ranks_whose_layouts_differ() -> None:
    def call(store: KVStore) -> None:
        broadcast(store, torch.ones(1, 4).expand(2, 4) if store.rank == 0 else torch.ones(2, 4))

    errors = errors_of(call)
    assert len(set(errors)) == 1, errors
    assert (
        "'table' float32 (2, 4) (expanded in dimension 0) where rank 1 has 'table' float32 (2, 4)"
        in errors[0]
    )


class _OtherLibrarys:
    """An array such as JAX's or pandas' own."""

    dtype = np.dtype(np.float32)
    shape = (2,)
    device = "cpu"

    def __array__(self, *_: Any) -> Any:
        return np.ones(self.shape, self.dtype)


ONE_RANKS: dict[str, Callable[[KVStore, bool], Any]] = {
    "broadcast_parameters, no names": lambda store, odd: gw.torch.broadcast_parameters(
        [torch.ones(2)] if odd else {"w": torch.ones(2)},
        0,
        store,  # type: ignore[arg-type]
    ),
    "broadcast_parameters, root": lambda store, odd: gw.torch.broadcast_parameters(
        {"w": torch.ones(2)}, 7 if odd else 0, store
    ),
    "all_reduce, dtype": lambda store, odd: store.collectives.all_reduce(
        np.ones(2, np.int16 if odd else np.float32)
    ),
    "all_reduce, sparse": lambda store, odd: store.collectives.all_reduce(
        torch.eye(2).to_sparse() if odd else torch.eye(2)
    ),
    "all_reduce, op": lambda store, odd: store.collectives.all_reduce(np.ones(2), "mean" if odd else "sum"),
    "all_reduce, no op": lambda store, odd: store.collectives.all_reduce(np.ones(2), None if odd else "sum"),  # type: ignore[arg-type]
    "all_reduce, average of integers": lambda store, odd: store.collectives.all_reduce(
        np.ones(2, int), "average" if odd else "sum"
    ),
    "reduce_scatter, op": lambda store, odd: store.collectives.reduce_scatter(
        np.ones(2), "avg" if odd else "sum"
    ),
    "broadcast, root": lambda store, odd: store.collectives.broadcast(np.ones(2), 2 if odd else 0),
    "broadcast, a root below 0": lambda store, odd: store.collectives.broadcast(np.ones(2), -1 if odd else 0),
    "broadcast, no number": lambda store, odd: store.collectives.broadcast(np.ones(2), "0" if odd else 0),  # type: ignore[arg-type]
    "reduce_scatter, no rows": lambda store, odd: store.collectives.reduce_scatter(
        np.ones((), np.float32) if odd else np.ones(2, np.float32)
    ),
    "broadcast, read-only": lambda store, odd: store.collectives.broadcast(
        np.broadcast_to(np.float32(1), 2) if odd else np.ones(2, np.float32)
    ),
    "all_gather, a list": lambda store, odd: store.collectives.all_gather([1.0] if odd else np.ones(2)),
    "all_to_all, one array": lambda store, odd: store.collectives.all_to_all(
        [np.ones(2)] * (1 if odd else 2)
    ),
    "broadcast of a key, read-only": lambda store, odd: store.broadcast(
        "w", np.broadcast_to(np.float32(1), 2) if odd else np.ones(2, np.float32)
    ),
    "broadcast of a key, out": lambda store, odd: store.broadcast(
        "w", np.ones(2, np.float32), np.ones(3 if odd else 2, np.float32)
    ),
    "init, a list of numbers": lambda store, odd: store.init("w", [1.0] if odd else np.ones(2, np.float32)),
    "init, of another library": lambda store, odd: store.init(
        "w", _OtherLibrarys() if odd else np.ones(2, np.float32)
    ),
    "broadcast of a key, out of another library": lambda store, odd: store.broadcast(
        "w", np.ones(2, np.float32), _OtherLibrarys() if odd else np.ones(2, np.float32)
    ),
    "all_reduce, of another library": lambda store, odd: store.collectives.all_reduce(
        _OtherLibrarys() if odd else np.ones(2, np.float32)
    ),
    "init, of whole numbers": lambda store, odd: store.init("w", np.ones(2, int if odd else np.float32)),
    "init, a key twice": lambda store, odd: store.init(
        ["a", "a"] if odd else ["a", "b"], [np.ones(2, np.float32)] * 2
    ),
    "init, no shape of rows": lambda store, odd: store.init(
        "t", gw.RowSparse([], [], None if odd else (2, 2))
    ),
    "push_pull, a new key": lambda store, odd: store.push_pull("w", [1.0] if odd else np.ones(2, np.float32)),
    "set_gradient_compression": lambda store, odd: store.set_gradient_compression("2bits" if odd else "2bit"),
    "set_gradient_compression, a number": lambda store, odd: store.set_gradient_compression(
        2 if odd else "2bit"  # type: ignore[arg-type]
    ),
    "set_optimizer": lambda store, odd: store.set_optimizer("sgd", learning_rate=-1 if odd else 1),
    "set_optimizer, beyond floats": lambda store, odd: store.set_optimizer(
        "sgd", learning_rate=10**400 if odd else 1
    ),
    "set_optimizer, a word": lambda store, odd: store.set_optimizer("sgd", learning_rate="1" if odd else 1),
}


@pytest.mark.parametrize("call", ONE_RANKS)
@pytest.mark.parametrize("odd", [0, 1])
def test_one_ranks_error_is_that_of_all(call: str, odd: int) -> None:
    errors = errors_of(lambda store: ONE_RANKS[call](store, store.rank == odd))
    own, others = errors[odd], errors[1 - odd]
    assert own
    assert own in others  # which says whose it is
    assert f"{odd}" in others


@pytest.mark.parametrize("call", ONE_RANKS)
def test_all_ranks_error_is_each_ranks_own(call: str) -> None:
    errors = errors_of(lambda store: ONE_RANKS[call](store, True))
    assert len(set(errors)) == 1, errors


# ------------------------------------------------------------------------------------- optimizers


def sgd(**options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.5, **options)


@pytest.mark.parametrize(
    "number",
    [np.float32(0.1), np.float64(0.1), np.int64(2), np.bool_(True)],
    ids=lambda number: type(number).__name__,
)
def test_numpys_scalars_in_groups_are_numbers(number: Any) -> None:
    def body(store: KVStore) -> None:
        optimizer = sgd()
        if store.rank == 0:
            optimizer.param_groups[0]["lr"] = number
        gw.torch.broadcast_optimizer_state(optimizer, store=store)
        assert optimizer.param_groups[0]["lr"] == number

    run_ranks(2, body)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda: object(), r"the state['param_groups'][0]['odd'] is a object"),
        (lambda: np.ones(2), r"the state['param_groups'][0]['odd'] is a ndarray"),
        (lambda: [1, {"deep": {2, 3}}], r"the state['param_groups'][0]['odd'][1]['deep'] is a set"),
        (lambda: torch.eye(2).to_sparse(), r"the state['param_groups'][0]['odd'] is torch.sparse_coo"),
    ],
)
def test_what_cannot_be_sent_of_the_root_is_named_on_all_ranks(value: Callable[[], Any], words: str) -> None:
    def call(store: KVStore) -> None:
        optimizer = sgd()
        if store.rank == 0:
            optimizer.param_groups[0]["odd"] = value()
        gw.torch.broadcast_optimizer_state(optimizer, store=store)

    errors = errors_of(call)
    assert words in errors[0]
    assert errors[0] in errors[1]


def test_a_state_of_unusual_tensors_travels() -> None:
    def body(store: KVStore) -> None:
        optimizer = sgd(momentum=0.9)
        (parameter,) = optimizer.param_groups[0]["params"]
        if store.rank == 0:
            optimizer.state[parameter]["momentum_buffer"] = torch.tensor([3.0]).expand(2)
        gw.torch.broadcast_optimizer_state(optimizer, store=store)
        assert torch.equal(optimizer.state[parameter]["momentum_buffer"], torch.tensor([3.0, 3.0]))

    run_ranks(2, body)


def test_other_parameter_groups_are_refused_on_all_ranks() -> None:
    def call(store: KVStore) -> None:
        optimizer = sgd()
        if store.rank == 1:
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
        gw.torch.broadcast_optimizer_state(optimizer, store=store)

    errors = errors_of(call)
    assert len(set(errors)) == 1, errors
    assert "rank 0 has parameter groups of [1] parameters, rank 1 of [1, 1]" in errors[0]


def failing(error: Exception) -> Any:
    """An array whose own code fails."""

    class Failing(np.ndarray):
        @property
        def shape(self) -> Any:
            raise error

    return np.ones(3, np.float32).view(Failing)


@pytest.mark.parametrize("error", [MemoryError(), OverflowError("too large"), KeyError(3)])
def test_whatever_an_argument_raises_is_an_error_on_all_ranks(error: Exception) -> None:
    def call(store: KVStore) -> None:
        store.init("w", failing(error) if store.rank == 1 else np.ones(3, np.float32))

    found = errors_of(call)
    assert all((str(error) or "MemoryError") in text for text in found), found
