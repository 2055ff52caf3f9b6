"""A table of nn.Embedding(sparse=True) is learned over `dist_async`: three workers, one of them slower, and two servers
that hold it and its optimizer, uncompressed and in codes, with a staleness bound and without.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from integration.processes import python, run_to_the_end

WORKERS = 3


@pytest.mark.parametrize("bound", ["none", "2"])
@pytest.mark.parametrize("codec", ["none", "int8"])
def test_a_table_is_learned(codec: str, bound: str, tmp_path: Path) -> None:
    command = python("async_embedding_worker.py", codec, bound)
    ended = run_to_the_end(tmp_path, command, workers=WORKERS, servers=2, seconds=120)
    assert ended.code == 0, str(ended)
    records = ended.records()
    assert len(records) == WORKERS
    for record in records:
        assert cast(float, record["last_loss"]) < 0.1 * cast(float, record["first_loss"])
        assert record["untouched"] == 0
        assert cast(int, record["stalest"]) <= (WORKERS - 1) * (2 * 2 + 1) or bound == "none"
    assert len({record["weights"] for record in records}) == 1
