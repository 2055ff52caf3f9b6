"""Codec none sums float64 in 64 bits, and complex numbers as pairs, through every door: kv, collectives and
DistributedOptimizer. The right values are NumPy's, and one process's. Ranks are threads.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import numpy as np
import pytest
import torch
from gradwire.kv import KVStore
from python.inproc_ranks import run_ranks
from torch import nn

pytestmark = pytest.mark.usefixtures("no_job")

DTYPES = ("float64", "complex64", "complex128")
SHAPES = ((5,), (3, 4), (), (70_000,), (300_000,))


def values_of(rank: int, shape: tuple[int, ...], dtype: str) -> Any:
    """Numbers that float32 would round, or make infinite."""
    generator = np.random.default_rng(1000 + rank)
    scale = 1.0 if dtype == "complex64" else 1e200
    real = generator.standard_normal(shape) * scale
    values = real + 1j * generator.standard_normal(shape) * scale if dtype.startswith("complex") else real
    return np.asarray(values, dtype)


def sum_of(ranks: int, shape: tuple[int, ...], dtype: str) -> Any:
    """In rank order."""
    total = values_of(0, shape, dtype)
    for rank in range(1, ranks):
        total = total + values_of(rank, shape, dtype)
    return np.asarray(total)


def as_is(array: Any) -> Any:
    return array


def as_tensor(array: Any) -> Any:
    return torch.from_numpy(np.array(array))


# ---- kv ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store_name", ["allreduce", "dist_sync"])
@pytest.mark.parametrize("library", [as_is, as_tensor])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_numpys(dtype: str, library: Any, store_name: str) -> None:
    def body(store: KVStore) -> None:
        for number, shape in enumerate(SHAPES):
            mine, true = values_of(store.rank, shape, dtype), sum_of(3, shape, dtype)
            store.init(number, library(np.zeros(shape, dtype)))
            out = library(np.empty(shape, dtype))
            store.pushpull(number, library(mine), out=out)
            np.testing.assert_array_equal(np.asarray(out), true)
            store.push(number, library(mine))
            store.push(number, library(mine))  # while the one before may be on its way
            again = library(np.empty(shape, dtype))
            store.pull(number, [again, library(np.empty(shape, dtype))])
            np.testing.assert_array_equal(np.asarray(again), true)
            in_place = library(mine.copy())
            store.pushpull(number, in_place)
            np.testing.assert_array_equal(np.asarray(in_place), true)

    run_ranks(3, body, store_name, partition_elements=65_536, shard_bound_elements=65_536)


@pytest.mark.parametrize("dtype", DTYPES)
def test_first_values_come_as_they_were_given(dtype: str) -> None:
    def body(store: KVStore) -> None:
        for number, shape in enumerate(SHAPES):
            out = np.empty(shape, dtype)
            store.broadcast(number, values_of(store.rank, shape, dtype), out=out, root_rank=1)
            np.testing.assert_array_equal(out, values_of(1, shape, dtype))

    run_ranks(2, body, partition_elements=65_536, shard_bound_elements=65_536)


def test_a_first_value_is_in_a_checkpoint(tmp_path: Path) -> None:
    value = values_of(0, (70_000,), "float64")

    def save(store: KVStore) -> None:
        store.init("a", value)
        store.save_checkpoint(tmp_path)

    def load(store: KVStore) -> None:
        store.init("a", np.zeros_like(value))
        store.load_checkpoint(tmp_path)
        out = np.empty_like(value)
        store.pull("a", out)
        np.testing.assert_array_equal(out, value)

    run_ranks(2, save, partition_elements=65_536)
    run_ranks(3, load, shard_bound_elements=65_536)


def test_arrays_that_are_not_contiguous() -> None:
    def body(store: KVStore) -> None:
        mine, true = values_of(store.rank, (6, 4), "complex128"), sum_of(2, (6, 4), "complex128")
        store.init("a", np.zeros((3, 4), "complex128").T)
        out = np.zeros((6, 4), "complex128").T
        store.pushpull("a", mine[::2].T, out=out[:, ::2])
        np.testing.assert_array_equal(out[:, ::2], true[::2].T)
        assert not out[:, 1::2].any()
        theirs = torch.zeros(6, 4, dtype=torch.complex128).t()
        store.pushpull("a", torch.from_numpy(mine)[::2].t().conj(), out=theirs[:, ::2])
        np.testing.assert_array_equal(theirs[:, ::2].numpy(), true[::2].T.conj())

    run_ranks(2, body)


def test_arrays_of_other_dtypes_than_the_keys() -> None:
    """A key has the dtype that it was initialised with; what is given is converted, and what comes rounded once."""

    def body(store: KVStore) -> None:
        store.init("wide", np.zeros(3))
        out = np.empty(3, np.float32)
        store.pushpull("wide", np.array([1, 2**-30, 3], np.float32), out=out)
        np.testing.assert_array_equal(out, np.array([2, 2**-29, 6], np.float32))
        wide = np.empty(3)
        store.push("wide", np.array([1 + 2.0**-40, 1, 1]))
        store.pull("wide", wide)
        np.testing.assert_array_equal(wide, [2 + 2.0**-39, 2, 2])
        half = torch.empty(3, dtype=torch.float16)
        store.pull("wide", half)
        np.testing.assert_array_equal(half.numpy(), np.array([2, 2, 2], np.float16))
        store.init("narrow", np.zeros(3, np.float32))
        store.pushpull("narrow", np.array([1 + 2.0**-40, 5, 1]), out=wide)
        np.testing.assert_array_equal(wide, [2, 10, 2])

    run_ranks(2, body)


def test_a_list_of_devices_values() -> None:
    def body(store: KVStore) -> None:
        mine = values_of(store.rank, (4,), "float64")
        store.init("a", mine)
        out = np.empty(4)
        store.pushpull("a", [mine, mine], out=out)
        np.testing.assert_array_equal(
            out, (values_of(0, (4,), "float64") * 2) + (values_of(1, (4,), "float64") * 2)
        )

    run_ranks(2, body)


def test_the_store_of_one_process() -> None:
    store = gw.kv.create("local")
    mine = values_of(0, (4,), "float64")
    for name, codec in (("a", "none"), ("b", "int8")):
        store.init(name, mine)
        store.set_gradient_compression(codec)
        out = np.empty(4)
        store.pushpull(name, [mine / 1e200, mine / 1e200], out=out)
        np.testing.assert_allclose(out, 2 * mine / 1e200, rtol=0 if codec == "none" else 0.02)
    store.close()


def test_codecs_work_in_float32_and_their_sums_come_as_the_keys_dtype() -> None:
    def body(store: KVStore) -> None:
        store.set_gradient_compression("int8:block=32")
        for dtype in DTYPES:
            mine = values_of(store.rank, (40,), dtype) / (1 if dtype == "complex64" else 1e200)
            store.init(dtype, np.zeros(40, dtype))
            out = np.empty(40, dtype)
            store.pushpull(dtype, mine.astype(dtype), out=out)
            true = sum_of(2, (40,), dtype) / (1 if dtype == "complex64" else 1e200)
            np.testing.assert_allclose(out, true, rtol=0, atol=0.02 * np.abs(true).max())

    run_ranks(2, body)


def test_an_optimizer_on_servers_keeps_float32() -> None:
    """As its docstring says; the gradient is summed in 64 bits before it is rounded."""

    def body(store: KVStore) -> None:
        store.init("a", np.full(3, 2.0))
        store.set_optimizer("sgd", learning_rate=0.5)
        out = np.empty(3)
        store.pull("a", out)
        np.testing.assert_array_equal(out, [2, 2, 2])
        given = np.array([1e60, 1.0, 3.0])
        store.pushpull("a", given if store.rank == 0 else np.array([-1e60, 1.0, 0.0]), out=out)
        np.testing.assert_array_equal(out, [2, 1, 0.5])

    run_ranks(2, body)


def test_keys_of_other_dtypes_refuse_float64() -> None:
    """Ranks that differ would wait for each other's sums in vain."""

    def body(store: KVStore) -> None:
        (key,) = store.engine.declare([("a", [3], "float32")])
        with pytest.raises(ValueError, match="key 'a' was declared as float32, and float64 was given"):
            store.engine.push(key, np.zeros(3))

    run_ranks(1, body)


# ---- collectives -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [as_is, as_tensor])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_collectives_of_complex_numbers(dtype: str, library: Any) -> None:
    def body(store: KVStore) -> None:
        of = store.collectives
        mine = values_of(store.rank, (7, 2), dtype)
        each = [values_of(rank, (7, 2), dtype) for rank in range(3)]
        np.testing.assert_array_equal(np.asarray(of.all_reduce(library(mine))), sum_of(3, (7, 2), dtype))
        average = np.asarray(of.all_reduce(library(mine), "average"))
        np.testing.assert_allclose(average, sum_of(3, (7, 2), dtype) / 3, rtol=1e-6)
        rows = np.array_split(sum_of(3, (7, 2), dtype), 3)
        np.testing.assert_array_equal(np.asarray(of.reduce_scatter(library(mine))), rows[store.rank])
        for got, true in zip(of.all_gather(library(mine)), each, strict=True):
            np.testing.assert_array_equal(np.asarray(got), true)
        sent = [library(mine[: rank + 1]) for rank in range(3)]
        for got, true in zip(of.all_to_all(sent), each, strict=True):
            np.testing.assert_array_equal(np.asarray(got), true[: store.rank + 1])
        copied = library(mine.copy())
        of.broadcast(copied, 2)
        np.testing.assert_array_equal(np.asarray(copied), each[2])
        with pytest.raises(ValueError, match=f"all_reduce: op='max' of {dtype}, expected 'sum' or 'average'"):
            of.all_reduce(library(mine), "max")
        with pytest.raises(ValueError, match=r"differ|numbers"):
            of.all_gather(library(mine) if store.rank == 0 else library(np.zeros((7, 2), of_real(dtype))))

    run_ranks(3, body)


def of_real(dtype: str) -> str:
    return {"complex64": "float32", "complex128": "float64"}[dtype]


# ---- DistributedOptimizer ----------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(6, 5, dtype=dtype))
        self.bias = nn.Parameter(torch.randn(5, dtype=dtype))
        self.large = nn.Parameter(torch.randn(5, 16_000, dtype=dtype))
        self.plain = nn.Parameter(torch.randn(5))

    def loss(self, rank: int, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(3, 6, generator=generator, dtype=torch.float64).to(self.first.dtype)
        hidden = (x @ self.first + self.bias) * self.plain
        return (hidden @ self.large).abs().square().mean()


with torch.random.fork_rng():
    torch.manual_seed(0)  # made once: ranks are threads, and would draw from one generator
    NETS = {dtype: Net(dtype) for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128)}
    TABLE = nn.Embedding(20, 3, sparse=True, dtype=torch.float64)


def fresh(dtype: torch.dtype) -> Net:
    return copy.deepcopy(NETS[dtype])


def means_of(net: Net, ranks: int, step: int) -> list[torch.Tensor]:
    """Gradients added in rank order, and divided."""
    total: list[torch.Tensor] = []
    for rank in range(ranks):
        net.zero_grad()
        net.loss(rank, step).backward()
        parts = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        total = parts if not total else [a + b for a, b in zip(total, parts, strict=True)]
    return [each * (1.0 / ranks) for each in total]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128, torch.float32])
def test_an_optimizers_means_are_those_of_one_process(dtype: torch.dtype, overlap: bool) -> None:
    ranks, steps = 3, 3
    net = fresh(dtype)
    inner = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for step in range(steps):
        means = means_of(net, ranks, step)
        for parameter, mean in zip(net.parameters(), means, strict=True):
            parameter.grad = mean
        inner.step()

    def body(store: KVStore) -> None:
        own = fresh(dtype)
        optimizer = gw.torch.DistributedOptimizer(
            torch.optim.SGD(own.parameters(), lr=0.01, momentum=0.9),
            own.named_parameters(),
            "none",
            store,
            overlap_step=overlap,
        )
        for step in range(steps):
            optimizer.zero_grad()
            own.loss(store.rank, step).backward()
            optimizer.step()
        optimizer.synchronize()
        for parameter, true in zip(own.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(parameter, true, rtol=0, atol=0)
        optimizer.close()

    run_ranks(ranks, body)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128])
def test_compressed_they_learn_in_float32(dtype: torch.dtype) -> None:
    def body(store: KVStore) -> None:
        own = fresh(dtype)
        optimizer = gw.torch.DistributedOptimizer(
            torch.optim.SGD(own.parameters(), lr=1e-6), own.named_parameters(), "int8", store
        )
        for step in range(3):
            optimizer.zero_grad()
            own.loss(store.rank, step).backward()
            for parameter, mean in zip(own.parameters(), means_of(copy.deepcopy(own), 2, step), strict=True):
                scale = float(mean.abs().max())
                assert float((parameter.grad - mean).abs().max()) < 0.03 * scale
            optimizer.step()
        residuals = optimizer.state_dict()["gradwire"]["residuals"]
        assert residuals["first"].numel() == (60 if dtype.is_complex else 30)
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.close()

    run_ranks(2, body)


def test_sparse_gradients_of_float64_are_exact_and_stay_sparse() -> None:
    """Rows travel as float32; such a table is summed as a dense one."""

    def body(store: KVStore) -> None:
        table = copy.deepcopy(TABLE)
        optimizer = gw.torch.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=0.1), table.named_parameters(), "none", store
        )
        for step in range(3):
            optimizer.zero_grad()
            (table(torch.tensor([1, 2 + step, 5 + store.rank])) * 1e60).sum().backward()
            gradient = table.weight.grad
            assert gradient.is_sparse
            true = torch.zeros(20, 3, dtype=torch.float64)
            for rank in range(2):
                for word in (1, 2 + step, 5 + rank):
                    true[word] += 0.5 * 1e60
            assert torch.equal(gradient.to_dense(), true)
            optimizer.step()
        optimizer.close()

    run_ranks(2, body)
