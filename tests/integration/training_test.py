"""The training script, by every launcher: the weights of a job do not tell how it was started, nor who summed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from integration.mpi_jobs import mpirun
from integration.processes import HERE, Ended, run_to_the_end

WORKERS = 4
SCRIPT = HERE.parents[1] / "experiments" / "fashion_mnist" / "train.py"


def command(store: str, record: Path) -> list[str]:
    return [
        *(sys.executable, str(SCRIPT), "--network", "lenet", "--kv-store", store, "--gc-type", "2bit"),
        *("--num-epochs", "1", "--batch-size", "16", "--limit", "256", "--seed", "3", "--threads", "1"),
        *("--json", str(record)),
    ]


def weights(ended: Ended, record: Path, workers: int = WORKERS) -> object:
    assert ended.code == 0, str(ended)
    found = json.loads(record.read_text())
    assert found["workers"] == workers
    assert found["steps"] == 256 // (16 * workers)
    return found["weights_sha256"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("servers")
    record = folder / "record.json"
    words = command("dist_sync", record)
    return weights(run_to_the_end(folder, words, workers=WORKERS, servers=2, seconds=180), record)


def test_updates_as_sums_arrive(reference: object, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    words = [*command("dist_sync", record), "--overlap-step"]
    ended = run_to_the_end(tmp_path, words, workers=WORKERS, servers=2, seconds=180)
    assert weights(ended, record) == reference
    assert json.loads(record.read_text())["overlap_step"] is True


def test_all_reduce_by_gradwire_run(reference: object, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    words = command("allreduce", record)
    ended = run_to_the_end(tmp_path, words, workers=WORKERS, servers=None, seconds=180)
    assert weights(ended, record) == reference


def test_by_mpirun(reference: object, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    ended = mpirun(tmp_path, command("dist_sync_mpi", record), ranks=WORKERS, seconds=180)
    assert weights(ended, record) == reference


@pytest.mark.soak
def test_where_mpi_sums(tmp_path: Path) -> None:
    """Of two workers: biases are not compressed, and MPI adds those of more in an order of its own."""
    records = {store: tmp_path / f"{store}.json" for store in ("dist_sync_mpi", "allreduce_mpi")}
    ended = {s: mpirun(tmp_path, command(s, record), ranks=2, seconds=180) for s, record in records.items()}
    found = {weights(ended[store], record, workers=2) for store, record in records.items()}
    assert len(found) == 1
