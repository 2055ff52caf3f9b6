"""MXNet's own acceptance of row-sparse keys, with its numbers, on 7 workers and 2 servers: uncompressed as there, and
in fp16, which holds all numbers of it.

Source: MXNet 1.9.1, tests/nightly/dist_sync_kvstore.py: worker r pushes r + 1 to rows that begin as 1; the `test`
optimizer adds rate 2 times the sum, so that N (N + 1) rate / 2 (i + 1) + 1 is there after round i. Pushes of no row
leave zeros; a big key has rows of density 0.3.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.processes import python, run_to_the_end

WORKERS = 7


@pytest.mark.parametrize("codec", ["none", "fp16"])
def test_row_sparse_acceptance(codec: str, tmp_path: Path) -> None:
    ended = run_to_the_end(
        tmp_path, python("acceptance_rows_worker.py", codec), workers=WORKERS, servers=2, seconds=240
    )
    assert ended.code == 0, str(ended)
    records = ended.records()
    assert {record["rank"] for record in records} == set(range(WORKERS))
    for record in records:
        assert record["all"] == [WORKERS * (WORKERS + 1) * (i + 1) + 1 for i in range(3)]
        assert record["empty"] == [[0, 0, 0], [0, 0, 0]]
        assert record["zeros"] == [[0, 0, 0], [2, 2, 2]]
        assert record["big_steps_equal"] == 3
