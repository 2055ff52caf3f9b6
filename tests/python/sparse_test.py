"""Rows of tables through the stores of this process, beside sums that NumPy makes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import gradwire as gw
import numpy as np
import pytest
import torch
from gradwire.kv import KVStore
from numpy.testing import assert_array_equal
from python.inproc_ranks import run_ranks

SHAPE = (20, 3)


@pytest.fixture
def kv(monkeypatch: pytest.MonkeyPatch) -> Iterator[KVStore]:
    for variable in ("GRADWIRE_ROLE", "DMLC_ROLE", "GRADWIRE_COMPRESSION"):
        monkeypatch.delenv(variable, raising=False)
    store = gw.kv.create("local")
    yield store
    store.close()


def some_rows(seed: int, count: int = 9) -> gw.RowSparse:
    """Ids in no order, some of them twice."""
    random = np.random.default_rng(seed)
    return gw.RowSparse(
        random.integers(0, SHAPE[0], count), random.normal(size=(count, 3)).astype(np.float32)
    )


def dense_sum(*given: gw.RowSparse) -> Any:
    """What each worker pushes, duplicates first, then workers in rank order."""
    total = np.zeros(SHAPE, np.float32)
    for one in given:
        mine = np.zeros(SHAPE, np.float32)
        for row, values in zip(one.row_ids, one.rows, strict=True):
            mine[row] += values
        total += mine
    return total


def pulled(store: KVStore, key: Any, rows: Any) -> Any:
    out = np.full((len(rows), *SHAPE[1:]), np.nan, np.float32)
    store.row_sparse_pull(key, out, row_ids=rows)
    return out


# ------------------------------------------------------------------------------------- one worker


def test_pushed_rows_are_pulled_in_the_order_asked(kv: KVStore) -> None:
    kv.init("table", gw.RowSparse([], [], SHAPE))
    given = some_rows(1)
    kv.push("table", given)
    wanted = [19, 0, 3, 3, 7]
    assert_array_equal(pulled(kv, "table", wanted), dense_sum(given)[wanted])


def test_first_values_are_those_of_init(kv: KVStore) -> None:
    weight = np.arange(60, dtype=np.float32).reshape(SHAPE)
    kv.init(3, gw.RowSparse.from_dense(weight))
    assert_array_equal(pulled(kv, 3, [2, 0]), weight[[2, 0]])


def test_a_row_sparse_out_is_set_ascending_and_each_row_once(kv: KVStore) -> None:
    kv.init("table", gw.RowSparse.from_dense(np.ones(SHAPE, np.float32)))
    out = gw.RowSparse([], torch.zeros(0, 3, dtype=torch.float64))
    kv.row_sparse_pull("table", out, row_ids=torch.tensor([5, 2, 5]))
    assert_array_equal(out.row_ids, [2, 5])
    assert torch.equal(out.rows, torch.ones(2, 3, dtype=torch.float64))
    assert out.shape == SHAPE


def test_one_call_may_have_several_tables_and_outs(kv: KVStore) -> None:
    kv.init(
        ["a", "b"], [gw.RowSparse([1], np.ones((1, 3)), SHAPE), gw.RowSparse([0], np.ones((1, 2)), (4, 2))]
    )
    first, again, other = np.zeros((1, 3)), torch.zeros(1, 3), np.zeros((2, 2), np.float16)
    kv.row_sparse_pull(["a", "b"], [[first, again], other], row_ids=[[1], [0, 3]])
    assert_array_equal(first, np.ones((1, 3)))
    assert torch.equal(again, torch.ones(1, 3))
    assert_array_equal(other, [[1, 1], [0, 0]])


def test_pushpull_gives_the_rows_of_the_round(kv: KVStore) -> None:
    given, out = some_rows(2), gw.RowSparse([], np.zeros((0, 3), np.float32))
    kv.init("table", gw.RowSparse([], [], SHAPE))
    kv.pushpull("table", given, out)
    assert_array_equal(out.row_ids, np.unique(given.row_ids))
    assert_array_equal(out.to_dense(), dense_sum(given))
    in_place = some_rows(3)
    expected = dense_sum(in_place)
    kv.pushpull("table", in_place)
    assert_array_equal(in_place.to_dense(), expected)


def test_push_pull_of_a_new_name_declares_it(kv: KVStore) -> None:
    given = gw.RowSparse([4, 4], torch.ones(2, 3), SHAPE)
    kv.push_pull("new", given)
    assert_array_equal(given.row_ids, [4])
    assert torch.equal(given.rows, torch.full((1, 3), 2.0))
    kv.push_pull("new", gw.RowSparse([1], np.ones((1, 3))))


def test_values_of_several_devices_are_summed(kv: KVStore) -> None:
    kv.init("table", gw.RowSparse([], [], SHAPE))
    one, two = some_rows(4), some_rows(5)
    kv.push("table", [one, two])
    together = gw.RowSparse(np.concatenate([one.row_ids, two.row_ids]), np.concatenate([one.rows, two.rows]))
    assert_array_equal(pulled(kv, "table", range(20)), dense_sum(together))


def test_no_rows_need_no_shape(kv: KVStore) -> None:
    kv.init("table", gw.RowSparse([], [], SHAPE))
    kv.push("table", gw.RowSparse([], []))
    out = gw.RowSparse([], [])
    kv.row_sparse_pull("table", out, row_ids=[2])
    assert not np.asarray(out.rows).any()


def test_rows_of_every_dtype_and_kind_are_taken(kv: KVStore) -> None:
    kv.init("table", gw.RowSparse([], [], SHAPE))
    for rows in (
        np.ones((1, 3), np.float16),
        np.ones((1, 3), np.float64),
        torch.ones(1, 3, dtype=torch.bfloat16),
        torch.ones(3, 1).T,
        torch.ones(1, 3, requires_grad=True),
    ):
        kv.push("table", gw.RowSparse(np.array([7], np.int32), rows))
        assert_array_equal(pulled(kv, "table", [7]), np.ones((1, 3)))


def test_an_optimizer_updates_the_pushed_rows_only(kv: KVStore) -> None:
    weight = np.ones(SHAPE, np.float32)
    kv.init("table", gw.RowSparse.from_dense(weight))
    kv.set_optimizer("sgd", learning_rate=0.5, wd=0.5)
    kv.push("table", gw.RowSparse([2], np.ones((1, 3), np.float32)))
    weight[2] -= 0.5 * (1 + 0.5 * weight[2])
    assert_array_equal(pulled(kv, "table", range(20)), weight)


@pytest.mark.parametrize("name", ["sgd", "sparse_adam", "adagrad"])
def test_lazy_updates_are_those_of_torch(kv: KVStore, name: str) -> None:
    """Of SGD without momentum, Adagrad and SparseAdam, to which torch gives sparse gradients. SparseAdam adds epsilon
    before it corrects the moments and our Adam, as torch's, behind, so it is next to nothing here.
    """
    table = torch.nn.Embedding(*SHAPE, sparse=True)
    parameters = table.parameters()
    optimizer: torch.optim.Optimizer = {
        "sgd": lambda: torch.optim.SGD(parameters, lr=0.1),
        "sparse_adam": lambda: torch.optim.SparseAdam(parameters, lr=0.1, eps=1e-15),
        "adagrad": lambda: torch.optim.Adagrad(parameters, lr=0.1),
    }[name]()
    kv.init("table", gw.RowSparse.from_dense(table.weight))
    if name == "sparse_adam":
        kv.set_optimizer("adam", learning_rate=0.1, epsilon=1e-15)
    else:
        kv.set_optimizer(name, learning_rate=0.1)
    for step in range(6):
        words = torch.from_numpy(np.random.default_rng(step).integers(0, 20, 5))
        optimizer.zero_grad()
        table(words).square().sum().backward()
        gradient = table.weight.grad
        assert gradient is not None
        kv.push("table", gw.RowSparse(gradient._indices()[0], gradient._values()))
        optimizer.step()
        weights = torch.from_numpy(pulled(kv, "table", range(20)))
        torch.testing.assert_close(weights, table.weight.detach(), rtol=2e-6, atol=5e-7)  # an update is 0.1
        with torch.no_grad():
            table.weight.copy_(weights)


# ------------------------------------------------------------------------------------- several workers


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_rows_are_summed_in_rank_order(workers: int) -> None:
    def body(store: KVStore) -> None:
        store.init("table", gw.RowSparse([], [], SHAPE))
        for step in range(4):
            given = [some_rows(10 * step + rank, count=rank * 6) for rank in range(workers)]  # rank 0: none
            mine, out = given[store.rank], gw.RowSparse([], np.zeros((0, 3), np.float32))
            store.pushpull("table", gw.RowSparse(mine.row_ids, mine.rows.reshape(-1, 3)), out)
            assert_array_equal(out.to_dense(), dense_sum(*given))

    run_ranks(workers, body)


def test_rows_are_compressed_with_the_stores_codec() -> None:
    bytes_sent = {}

    def body(store: KVStore) -> None:
        store.set_gradient_compression({"type": "fp16"})
        store.init("table", gw.RowSparse([], [], (1_000_000, 64)))
        rows = gw.RowSparse(np.arange(100) * 7, np.full((100, 64), 1 + 2**-12, np.float32))
        sums = []
        for _ in range(4):
            out = gw.RowSparse([], np.zeros((0, 64), np.float32))
            store.pushpull("table", rows, out)
            sums.append(out.rows[0, 0])
        assert sum(sums) == pytest.approx(4 * 2 * (1 + 2**-12), abs=2 * 2**-10)  # what is left comes later
        assert len(set(sums)) > 1
        bytes_sent[store.rank] = store.stats()["bytes_encoded"]

    run_ranks(2, body)
    assert all(4 * 100 * 128 < sent < 4 * 100 * 132 for sent in bytes_sent.values())


def test_two_bits_a_value_with_the_numbers_of_mxnets_test() -> None:
    """T = 0.5: pushes of 0, 0.4, 0.1, 0.2, 0.3, 0.5 make sums of 0, 0, N/2, 0, N/2, N/2 as residuals fill."""
    sums = []

    def body(store: KVStore) -> None:
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        store.init("table", gw.RowSparse([], [], SHAPE))
        for value in (0.0, 0.4, 0.1, 0.2, 0.3, 0.5):
            out = gw.RowSparse([], np.zeros((0, 3), np.float32))
            store.pushpull("table", gw.RowSparse([3], np.full((1, 3), value, np.float32)), out)
            if store.rank == 0:
                sums.append(out.to_dense() if out.shape else None)

    run_ranks(3, body)
    assert [float(each[3, 0]) for each in sums] == [0, 0, 1.5, 0, 1.5, 1.5]


def test_a_table_may_have_a_codec_of_its_own_and_dense_keys_another() -> None:
    def body(store: KVStore) -> None:
        store.init("dense", np.zeros(8, np.float32))
        store.init("table", gw.RowSparse([], [], SHAPE))
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        store.rows.set_compression("table", "fp16", "fp16")
        out = gw.RowSparse([], np.zeros((0, 3), np.float32))
        store.pushpull("table", gw.RowSparse([1], np.full((1, 3), 0.25, np.float32)), out)
        assert_array_equal(out.rows, np.full((1, 3), 0.5))
        dense = np.full(8, 0.25, np.float32)
        store.pushpull("dense", dense)
        assert_array_equal(dense, np.zeros(8))

    run_ranks(2, body)


def test_rows_and_dense_keys_may_be_pushed_at_once() -> None:
    def body(store: KVStore) -> None:
        store.init(1, np.zeros(50_000, np.float32))
        store.init(2, gw.RowSparse([], [], SHAPE))
        for step in range(5):
            store.push(2, some_rows(step + store.rank))
            store.push(1, np.full(50_000, 1 + store.rank, np.float32))
            dense = np.zeros(50_000, np.float32)
            store.pull(1, dense)
            assert dense[0] == 3
            expected = dense_sum(some_rows(step), some_rows(step + 1))
            assert_array_equal(pulled(store, 2, range(20)), expected)

    run_ranks(2, body)


def test_ranks_that_declare_other_tables_are_told() -> None:
    texts: dict[int, str] = {}
    lock = threading.Lock()

    def body(store: KVStore) -> None:
        with pytest.raises(ValueError, match="keys differ: worker 0 has 'table'") as error:
            store.init("table", gw.RowSparse([], [], (20, 3 + store.rank)))
        with lock:
            texts[store.rank] = str(error.value)

    run_ranks(2, body)
    assert texts[0] == texts[1]


# ------------------------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("ids", "shape", "text"),
    [
        ([20], SHAPE, r"init: row_ids\[0\] of key 't' is 20, outside a table of 20 rows"),
        ([], (0, 3), r"init: the RowSparse of key 't' has shape \(0, 3\), expected at least one row"),
        ([], (-4, 3), r"has shape \(-4, 3\), expected at least one row"),
        ([], (), r"has shape \(\), expected at least one row"),
        ([], (2**32, 2**32), r"'t' float32 \(4294967296, 4294967296\) has more than 2\^61 elements"),
        ([], (2**62, 8), "has more than 2\\^61 elements"),
        ([], (2**70, 1), "has shape"),
    ],
)
def test_first_values_that_cannot_be_declare_nothing(
    kv: KVStore, ids: list[int], shape: tuple[int, ...], text: str
) -> None:
    rows = np.ones((len(ids), *shape[1:]), np.float32) if ids else []
    with pytest.raises(ValueError, match=text):
        kv.init("t", gw.RowSparse(ids, rows, shape))
    kv.init("t", gw.RowSparse([3], np.ones((1, 3)), SHAPE))
    assert_array_equal(pulled(kv, "t", [3]), np.ones((1, 3)))


def test_a_table_may_have_rows_beyond_any_that_are_used(kv: KVStore) -> None:
    last = 2**60 - 1
    kv.init("t", gw.RowSparse([], [], (last + 1, 2)))
    kv.push("t", gw.RowSparse([5, last], np.asarray([[1, 2], [3, 4]], np.float32)))
    out = np.zeros((2, 2), np.float32)
    kv.row_sparse_pull("t", out, row_ids=[last, 5])
    assert_array_equal(out, [[3, 4], [1, 2]])


def test_row_ids_outside_the_table_are_named_and_nothing_is_sent(kv: KVStore) -> None:
    kv.init(["a", "b"], [gw.RowSparse([], [], SHAPE)] * 2)
    good, bad = some_rows(1), gw.RowSparse([3, 20], np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"push: row_ids\[1\] of key 'b' is 20, outside a table of 20 rows"):
        kv.push(["a", "b"], [good, bad])
    with pytest.raises(ValueError, match=r"row_ids\[0\] is -1, outside a table of 20 rows"):
        pulled(kv, "a", [-1])
    kv.push("a", good)
    assert_array_equal(pulled(kv, "a", range(20)), dense_sum(good))


@pytest.mark.parametrize(
    ("ids", "rows", "text"),
    [
        ([1, 2], np.ones((3, 3)), "2 row_ids but rows of shape"),
        ([[1]], np.ones((1, 3)), "expected whole numbers of one dimension"),
        ([1.5], np.ones((1, 3)), "expected whole numbers of one dimension"),
        (np.array([2**63], np.uint64), np.ones((1, 3)), "is no row of any table"),
        ([1], np.ones((1, 3), np.int32), "rows are int32"),
    ],
)
def test_what_is_no_rows_is_refused(ids: Any, rows: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        gw.RowSparse(ids, rows)


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (np.zeros((1, 3), np.int32), "int32, expected one of float32"),  # it got the rows' whole parts
        (torch.zeros(1, 3, dtype=torch.bool), "bool, expected one of float32"),
        (np.broadcast_to(np.float32(0), (1, 3)), "read-only; give a writable array"),
    ],
)
def test_an_out_that_cannot_hold_rows_is_refused_before_they_are_asked_for(
    kv: KVStore, out: Any, text: str
) -> None:
    kv.init("table", gw.RowSparse([], [], SHAPE))
    with pytest.raises(ValueError, match=f"row_sparse_pull: out of key 'table' is {text}"):
        kv.row_sparse_pull("table", out, row_ids=[1])


def test_an_array_without_rows_has_none() -> None:
    found = gw.RowSparse.from_dense(np.zeros((0, 3), np.float32))
    assert len(found.row_ids) == 0
    assert found.to_dense().shape == (0, 3)


@pytest.mark.parametrize("row", [-1, 3])
def test_a_row_outside_its_array_is_none_of_it(row: int) -> None:
    with pytest.raises(ValueError, match=f"row_ids hold {row}, outside an array of 3 rows"):
        gw.RowSparse([row], np.ones((1, 2), np.float32), (3, 2)).to_dense()


def test_tables_and_dense_keys_are_not_mixed_up(kv: KVStore) -> None:
    dense = np.zeros(4, np.float32)
    kv.init("dense", dense)
    kv.init("table", gw.RowSparse([], [], SHAPE))
    with pytest.raises(ValueError, match="'table' was initialised with a RowSparse"):
        kv.pull("table", dense)
    with pytest.raises(ValueError, match="'table' was initialised with a RowSparse"):
        kv.push("table", dense)
    with pytest.raises(ValueError, match="'dense' was not initialised with a RowSparse"):
        kv.push("dense", some_rows(1))
    with pytest.raises(ValueError, match="'table' was declared before"):
        kv.init("table", dense)
    with pytest.raises(ValueError, match="'dense' was declared before"):
        kv.init("dense", gw.RowSparse([], [], SHAPE))
    with pytest.raises(ValueError, match="mixed key types"):
        kv.init(7, gw.RowSparse([], [], SHAPE))
    with pytest.raises(ValueError, match="does not say what shape"):
        kv.init("new", some_rows(1))
    with pytest.raises(ValueError, match="initialise them in two calls"):
        kv.init(["x", "y"], [gw.RowSparse([], [], SHAPE), dense])
    with pytest.raises(ValueError, match="row_ids is missing"):
        kv.row_sparse_pull("table", np.zeros((1, 3)))
    with pytest.raises(ValueError, match="expected a RowSparse or an array of shape"):
        kv.row_sparse_pull("table", np.zeros((2, 3)), row_ids=[1])
    with pytest.raises(TypeError, match="expected a RowSparse to set"):
        kv.pushpull("table", some_rows(1), np.zeros(SHAPE))
    with pytest.raises(ValueError, match="has rows of shape"):
        kv.push("table", gw.RowSparse([1], np.ones((1, 4))))
    with pytest.raises(ValueError, match=r"broadcast: rows are stored by init\(\)"):
        kv.broadcast("other", gw.RowSparse([], [], SHAPE))
