"""The collectives of a store of one worker: kinds of arrays, results of their kind, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import gradwire
import numpy as np
import pytest
import torch
from gradwire.collectives import Collectives
from numpy.testing import assert_array_equal

NUMPY = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")
TORCH = (*NUMPY, "bfloat16")


@pytest.fixture
def all_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collectives]:
    for variable in ("GRADWIRE_ROLE", "DMLC_ROLE"):
        monkeypatch.delenv(variable, raising=False)
    store = gradwire.kv.create("local")
    yield store.collectives
    store.close()


def arrays() -> list[Any]:
    """Every kind that is taken, among them empty ones, scalars and views."""
    plain = [np.arange(6).reshape(2, 3).astype(dtype) for dtype in NUMPY]
    tensors = [torch.arange(6).reshape(2, 3).to(getattr(torch, dtype)) for dtype in TORCH]
    odd = [np.float32(3), np.array(4), np.empty((0, 3), np.int8), torch.empty(0), torch.tensor(2.0)]
    views = [np.arange(12.0).reshape(3, 4).T, np.arange(10)[::3], torch.arange(12).reshape(3, 4).T]
    single = [torch.arange(6).as_strided((1, 1), (1, 2)), torch.arange(6.0)[::4][1:]]  # of any stride
    return [*plain, *tensors, *odd, *views, *single]


def assert_same(result: Any, array: Any) -> None:
    if isinstance(array, torch.Tensor):
        assert result.dtype == array.dtype
        assert torch.equal(result, array)
    else:
        assert result.dtype == array.dtype
        assert result.shape == np.shape(array)
        assert_array_equal(result, array)


@pytest.mark.parametrize("array", arrays(), ids=lambda a: f"{type(a).__name__}-{a.dtype}-{tuple(a.shape)}")
def test_one_rank_gets_back_what_it_gave(all_ranks: Collectives, array: Any) -> None:
    for op in ("sum", "min", "max", "product"):
        assert_same(all_ranks.all_reduce(array, op), array)
    (gathered,) = all_ranks.all_gather(array)
    assert_same(gathered, array)
    if len(array.shape) > 0:
        assert_same(all_ranks.reduce_scatter(array), array)
        (received,) = all_ranks.all_to_all([array])
        assert_same(received, array)


def test_in_place_and_elsewhere(all_ranks: Collectives) -> None:
    array = np.arange(5.0)
    assert all_ranks.all_reduce(array, "average", out=array) is array
    assert_array_equal(array, np.arange(5.0))
    out = torch.zeros(5)
    assert all_ranks.all_reduce(torch.ones(5), out=out) is out
    assert torch.equal(out, torch.ones(5))
    assert all_ranks.broadcast(array) is array


def test_a_result_is_memory_of_its_own(all_ranks: Collectives) -> None:
    array = np.ones(4)
    results = [all_ranks.all_reduce(array), all_ranks.all_gather(array)[0], all_ranks.reduce_scatter(array)]
    array[:] = 7
    for result in results:
        assert_array_equal(result, np.ones(4))
        result[:] = 1  # and writable


def test_a_parameter_may_be_broadcast(all_ranks: Collectives) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    assert all_ranks.broadcast(weight) is weight


def read_only() -> Any:
    array = np.zeros(4)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.all_reduce(np.zeros(3), "mean"), "unknown op 'mean'; valid are sum, average"),
        (lambda c: c.all_reduce(np.zeros(3, np.uint16)), "dtype uint16 is not one of uint8"),
        (lambda c: c.all_reduce(torch.zeros(3, dtype=torch.bool)), "dtype bool is not one of"),
        (lambda c: c.all_reduce(np.zeros(3, np.int64), "average"), "'average' of int64 is not defined"),
        (lambda c: c.all_reduce(np.zeros(3), out=np.zeros(4)), r"float64 of shape \(4,\), expected float64"),
        (lambda c: c.all_reduce(np.zeros(3), out=np.zeros(3, np.float32)), "out is float32"),
        (lambda c: c.all_reduce(np.zeros(3), out=np.zeros(6)[::2]), "not contiguous"),
        (lambda c: c.broadcast(read_only()), "read-only"),
        (lambda c: c.broadcast(np.zeros(3), root=1), "root=1 is not a worker rank; expected 0 to 0"),
        (lambda c: c.reduce_scatter(np.array(3.0)), r"shape \(\) has no rows"),
        (lambda c: c.all_gather(np.zeros((3, 0))), r"shape \(3, 0\) has no rows"),
        (lambda c: c.all_to_all([]), "0 arrays given, expected one for each of 1 ranks"),
        (lambda c: c.all_reduce(torch.zeros(3, device="meta")), "on meta; give a copy on the CPU"),
    ],
)
def test_mistakes_are_named(all_ranks: Collectives, call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(all_ranks)
    assert_array_equal(all_ranks.all_reduce(np.ones(2)), np.ones(2))  # the store lives on


def test_what_is_no_array_is_named(all_ranks: Collectives) -> None:
    with pytest.raises(TypeError, match="given a list, expected a NumPy or PyTorch array"):
        all_ranks.all_reduce([1, 2])


def test_what_has_begun_runs_in_order_and_before_what_is_called_next(all_ranks: Collectives) -> None:
    order: list[str] = []
    may_go_on = threading.Event()

    def first() -> Any:
        may_go_on.wait(60)
        order.append("first")
        return all_ranks.all_reduce(np.ones(3))  # does not wait for itself

    begun = [all_ranks.begin(first), all_ranks.begin(lambda: order.append("second"))]
    assert order == []
    may_go_on.set()
    all_ranks.barrier()
    assert order == ["first", "second"]
    assert_array_equal(begun[0].result(), np.ones(3))
    assert begun[1].result() is None


def test_an_error_is_of_who_asks_for_the_result(all_ranks: Collectives) -> None:
    bad = all_ranks.begin(lambda: all_ranks.all_reduce(np.ones(3), op="median"))
    good = all_ranks.begin(lambda: all_ranks.all_reduce(np.ones(3)))
    assert_array_equal(all_ranks.all_gather(np.ones(2))[0], np.ones(2))
    assert_array_equal(good.result(), np.ones(3))
    with pytest.raises(ValueError, match="median"):
        bad.result()


def test_a_store_is_closed_once_what_has_begun_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("GRADWIRE_ROLE", "DMLC_ROLE"):
        monkeypatch.delenv(variable, raising=False)
    store = gradwire.kv.create("local")
    may_go_on = threading.Event()

    def late() -> Any:
        may_go_on.wait(60)
        return store.collectives.all_reduce(np.ones(2))

    begun = store.collectives.begin(late)
    timer = threading.Timer(0.2, may_go_on.set)
    timer.start()
    store.close()
    assert_array_equal(begun.result(), np.ones(2))
