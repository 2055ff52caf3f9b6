"""A worker written from the documents alone fills a rank, and nobody can tell."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from integration.processes import HERE, ByHand, python

SECONDS = 60.0
PLAIN_WORKERS_SETTINGS = {"GRADWIRE_PARTITION_BYTES": "256KiB", "GRADWIRE_BIGARRAY_BOUND": "1000000"}


def train_by_hand(folder: Path, plain_ranks: set[int]) -> list[dict[str, object]]:
    folder.mkdir()
    with ByHand(folder, PLAIN_WORKERS_SETTINGS) as job:
        job.start_scheduler()
        for rank in range(2):
            job.start_server(rank)
            if rank in plain_ranks:
                job.start(("worker", rank), python("plain_worker.py", job.endpoint, str(rank), "2", "2"))
            else:
                job.start_worker(rank, python("linear_model.py"))
        ended = job.end(SECONDS)
    for process in ended.values():
        assert process.code == 0, str(process)
    return [ended["worker", rank].records()[0] for rank in range(2)]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    records = train_by_hand(tmp_path_factory.mktemp("ours") / "job", set())
    assert records[0]["weights"] == records[1]["weights"]
    assert records[0]["moved"], "no weight moved: the comparison would prove nothing"
    return records


@pytest.mark.parametrize("plain_ranks", [{0}, {1}, {0, 1}], ids=["rank 0", "rank 1", "both"])
def test_it_gets_the_same_weights_to_the_bit(
    ours: list[dict[str, object]], plain_ranks: set[int], tmp_path: Path
) -> None:
    assert train_by_hand(tmp_path / "job", plain_ranks) == ours


def test_it_is_short_and_plain() -> None:
    text = (HERE / "plain_worker.py").read_text()
    assert len(text.splitlines()) < 200
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    foreign = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert foreign == {"numpy", "linear_model"}
