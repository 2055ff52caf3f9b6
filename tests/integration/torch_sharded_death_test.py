"""A rank of a sharded model dies while the others are in backward(): each ends with an error that names it."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.torch_jobs import run_ranks_apart

PROGRAM = Path(__file__).with_name("torch_sharded_death_worker.py")


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_dead_rank_of_a_sharded_model_is_named(ranks: int, tmp_path: Path) -> None:
    for code, text in run_ranks_apart(PROGRAM, tmp_path, "fsdp", ranks)[:-1]:
        assert code == 1, text
        assert "TransportError" in text, text
        assert f"worker {ranks - 1}" in text, text
        assert "ranks of torch.distributed" not in text, text


def test_a_dead_replica_is_named_by_its_rank(tmp_path: Path) -> None:
    ended = run_ranks_apart(PROGRAM, tmp_path, "hsdp", 4)
    code, text = ended[1]
    assert code == 1, text
    assert "TransportError" in text, text
    assert "worker 1" in text, text
    assert "workers 0, 1 of this job are ranks 1, 3 of torch.distributed" in text, text
    assert all(code != 0 for code, _ in ended)
