"""Many keys are declared and get their first values together: exchanges do not grow with their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gradwire import RowSparse
from gradwire.kv import KVStore
from numpy.testing import assert_array_equal
from python.inproc_ranks import run_ranks

pytestmark = pytest.mark.usefixtures("no_job")


class _Counting:
    """An engine, and how often each of its methods was called."""

    def __init__(self, engine: Any) -> None:
        self.calls: Counter[str] = Counter()
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._engine, name)
        if not callable(method):
            return method

        def counted(*given: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return method(*given, **named)

        return counted


class _Watched(dict[Any, Any]):
    """A dict, and how many of its keys were looked at one by one."""

    looked_at = 0

    def __iter__(self) -> Any:
        for key in super().__iter__():
            self.looked_at += 1
            yield key


def test_keys_of_one_call_get_their_values_in_one() -> None:
    def body(kv: KVStore) -> None:
        engine = _Counting(kv.engine)
        kv.dense._engine = engine  # type: ignore[assignment]
        firsts = [np.full(10, 100 * kv.rank + i, np.float64 if i % 3 else np.float32) for i in range(500)]
        kv.init(list(range(500)), firsts)
        assert engine.calls == {"declare": 1, "init": 1}
        outs = [np.zeros_like(first) for first in firsts]
        kv.pull(list(range(500)), outs)
        for i, out in enumerate(outs):
            assert_array_equal(out, np.full(10, i))
        kv.barrier()

    run_ranks(2, body)


def test_tables_of_one_call_get_their_rows_in_one() -> None:
    def body(kv: KVStore) -> None:
        names = [f"table.{i}" for i in range(50)]
        firsts = [RowSparse([2, 5], np.full((2, 3), i, np.float32), shape=(9, 3)) for i in range(50)]
        engine = _Counting(kv.engine)
        kv.engine = engine  # type: ignore[assignment]
        kv.init(names, firsts)
        assert (engine.calls["declare_rows"], engine.calls["init_rows"]) == (1, 1)
        out = np.zeros((1, 3), np.float32)
        for i, name in enumerate(names):
            kv.row_sparse_pull(name, out=out, row_ids=np.array([5]))
            assert_array_equal(out, np.full((1, 3), i))
        kv.barrier()

    run_ranks(2, body)


def _init(kv: KVStore, key: str) -> None:
    kv.init(key, np.zeros(1, np.float32))


def _push_pull(kv: KVStore, key: str) -> None:
    kv.push_pull(key, np.zeros(1, np.float32))


@pytest.mark.parametrize("call", [_init, _push_pull])
def test_a_call_looks_at_no_key_but_its_own(kv: KVStore, call: Callable[[KVStore, str], None]) -> None:
    kv.init([str(i) for i in range(300)], [np.zeros(1, np.float32)] * 300)
    kv.dense.ids = watched = _Watched(kv.dense.ids)
    for i in range(10):
        call(kv, f"new.{i}")
    assert watched.looked_at <= 10


@pytest.mark.parametrize(
    ("key", "said"), [(7, "mixed key types are not allowed"), ("1", "'1' was declared before")]
)
def test_a_key_that_does_not_fit_those_before_is_refused(kv: KVStore, key: int | str, said: str) -> None:
    kv.init(["0", "1"], [np.zeros(1, np.float32)] * 2)
    with pytest.raises(ValueError, match=said):
        kv.init(key, np.zeros(1, np.float32))
