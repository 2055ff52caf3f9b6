"""PowerSGD between real processes: the paper's means, the same bits on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.processes import python, run_to_the_end


@pytest.mark.parametrize(("store", "workers", "servers"), [("allreduce", 3, None), ("dist_sync", 2, 1)])
def test_every_rank_gets_the_papers_mean(
    store: str, workers: int, servers: int | None, tmp_path: Path
) -> None:
    command = python("power_sgd_worker.py", store)
    ended = run_to_the_end(tmp_path, command, workers=workers, servers=servers, seconds=120)
    assert ended.code == 0, str(ended)
    results = [record["result"] for record in ended.records()]
    assert len(results) == workers
    assert len(set(map(str, results))) == 1
