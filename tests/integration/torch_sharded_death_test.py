"""A rank of a sharded model dies while the others are in backward(): each ends with an error that names it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from integration.processes import clean_environment

PROGRAM = Path(__file__).with_name("torch_sharded_death_worker.py")


def ranks_of(folder: Path, way: str, ranks: int) -> list[tuple[int, str]]:
    """Returns exit codes and what was written to stderr, by rank."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), way, str(folder / "store"), str(rank), str(ranks)],
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(folder, {}),
        )
        for rank in range(ranks)
    ]
    try:
        texts = [process.communicate(timeout=240)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, text) for process, text in zip(processes, texts, strict=True)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_dead_rank_of_a_sharded_model_is_named(ranks: int, tmp_path: Path) -> None:
    for code, text in ranks_of(tmp_path, "fsdp", ranks)[:-1]:
        assert code == 1, text
        assert "TransportError" in text, text
        assert f"worker {ranks - 1}" in text, text
        assert "ranks of torch.distributed" not in text, text


def test_a_dead_replica_is_named_by_its_rank(tmp_path: Path) -> None:
    ended = ranks_of(tmp_path, "hsdp", 4)
    code, text = ended[1]
    assert code == 1, text
    assert "TransportError" in text, text
    assert "worker 1" in text, text
    assert "workers 0, 1 of this job are ranks 1, 3 of torch.distributed" in text, text
    assert all(code != 0 for code, _ in ended)
