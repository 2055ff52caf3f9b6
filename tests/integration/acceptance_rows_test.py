"""MXNet's own acceptance of row-sparse keys, with its numbers, on every store: 7 workers, uncompressed as there, and on
servers in fp16 too, which holds all numbers of it. Stores that have no rows say so on every worker. All numbers are
small and whole, so that stores which apply each worker's push by itself end at the same.

Source: MXNet 1.9.1, tests/nightly/dist_sync_kvstore.py: worker r pushes r + 1 to rows that begin as 1; the `test`
optimizer adds rate 2 times the sum, so that N (N + 1) rate / 2 (i + 1) + 1 is there after round i. Pushes of no row
leave zeros; a big key has rows of density 0.3.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.stores import STORES, Row, run

CASES = [(row, "none") for row in STORES] + [
    (row, "fp16") for row in STORES if row.name in ("dist_sync", "dist_async")
]


@pytest.mark.parametrize(("row", "codec"), CASES, ids=lambda value: getattr(value, "name", value))
def test_row_sparse_acceptance(row: Row, codec: str, tmp_path: Path) -> None:
    ended = run(row, tmp_path, "acceptance_rows_worker.py", row.name, codec)
    assert ended.code == 0, str(ended)
    records, n = ended.records(), row.workers
    assert sorted(record["rank"] for record in records) == list(range(n))  # type: ignore[type-var]
    for record in records:
        if row.refuses_rows:
            assert row.refuses_rows in str(record["refused"])
            continue
        assert record["all"] == [n * (n + 1) * (i + 1) + 1 for i in range(3)]
        assert record["empty"] == [[0, 0, 0], [0, 0, 0]]
        assert record["zeros"] == [[0, 0, 0], [2, 2, 2]]
        assert record["big_steps_equal"] == 3
