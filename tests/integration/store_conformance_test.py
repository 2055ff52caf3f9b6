"""What every store does, with MXNet's own acceptance numbers: a store joins by a row of STORES (stores.py).

Source: MXNet 1.9.1, tests/nightly/dist_sync_kvstore.py, which runs 7 workers. Its `test` optimizer adds rescale_grad
times the sum, here 2 times: dense pushes of rank + 1 on 1 leave (N + 1) N (i + 1) + 1 after round i; with 2bit and
threshold .5 pushes of 0, .4, .1, .2, .3, .5 leave 0, 0, N, N, 2N, 3N; a step of SGD on 1 leaves 1 - (N + 1) N / 2.
All numbers are small and whole, so that stores which apply each worker's push by itself end at the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gradwire.stores import connect
from integration.stores import STORES, Row, run


def test_every_store_is_tested() -> None:
    assert [row.name for row in STORES] == connect.names()


@pytest.mark.parametrize("row", STORES, ids=lambda row: row.name)
def test_a_store(row: Row, tmp_path: Path) -> None:
    ended = run(row, tmp_path, "store_conformance_worker.py", row.name, row.gives)
    assert ended.code == 0, str(ended)
    records = ended.records()
    n = row.workers
    assert sorted(record["rank"] for record in records) == list(range(n))  # type: ignore[type-var]
    total = n * (n + 1) // 2  # of rank + 1
    dense = [2 * total * (i + 1) + 1 for i in range(3)]
    for record in records:
        assert record["type"] == row.name
        assert record["num_workers"] == n
        assert record["is_capable"] == [True, True, False]
        assert record["broadcast"] == n - 1
        assert record["first_values"] == [0, 1]
        for text, said in zip(
            record["mistakes"],  # type: ignore[call-overload]
            (
                "'never' has not been initialised",
                "has no element",
                "did you mean 2bit",
                "did you mean 'sgd'",
            ),
            strict=True,
        ):
            assert said in text
        if row.gives == "sums":
            assert record["sums"] == [total, 2 * total, total]
        else:
            for text in record["without_an_optimizer"]:  # type: ignore[attr-defined]
                assert "there is no optimizer that could; call set_optimizer" in text
        assert record["dense float32"] == record["dense float16"] == record["fp16"] == dense
        assert record["2bit push"] == record["2bit pushpull"] == [0, 0, n, n, 2 * n, 3 * n]
        assert record["2bit random"] == 7
        assert record["trainer"] == 1 - total
