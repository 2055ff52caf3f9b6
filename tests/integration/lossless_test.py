"""lossless=on between real processes: fewer bytes, and the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.processes import python, run_to_the_end


@pytest.mark.parametrize(("store", "servers"), [("dist_sync", 2), ("allreduce", None)])
@pytest.mark.parametrize(
    "compression", ["2bit:threshold=0.25,reply=2bit", "2bit:threshold=auto,scale=3,reply=2bit"]
)
def test_fewer_bytes_give_the_same_sums(
    compression: str, store: str, servers: int | None, tmp_path: Path
) -> None:
    results, sent = [], []
    for spec in (compression, f"{compression},lossless=on"):
        folder = tmp_path / str(len(sent))
        folder.mkdir()
        command = python("lossless_worker.py", store, spec)
        ended = run_to_the_end(folder, command, workers=2, servers=servers, seconds=120)
        assert ended.code == 0, str(ended)
        results += [record["result"] for record in ended.records()]
        sent.append(sum(int(str(record["sent"])) for record in ended.records()))
    assert len(results) == 4
    assert len(set(map(str, results))) == 1
    assert sent[1] < sent[0] / 5
