"""One sha256 of the final weights of a compressed job: wherever sums are made, whoever comes late, every time.

Codec 2bit with agreed scales and reply exact: thresholds follow the gradients, so that one bit that differs in any
round of any tensor moves all weights after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from integration.mpi_jobs import mpirun
from integration.processes import Job, agreed, python, run_to_the_end

WORKERS = 3
RUNS = 10  # of each placement, by `make soak`; every one with other delays
Place = Callable[[Path, str], object]  # a folder and a seed of delays (empty: none) to the weights' hash


def command(store: str, delays: str, *options: str) -> list[str]:
    codec = "codec=2bit:threshold=auto,reply=exact"
    return python("linear_model.py", f"store={store}", codec, "rate=1e-6", f"delays={delays}", *options)


def weights(ended: object) -> object:
    return agreed(ended, WORKERS, "weights")  # type: ignore[arg-type]


def by_servers(folder: Path, delays: str, servers: int = 2) -> object:
    return weights(run_to_the_end(folder, command("dist_sync", delays), workers=WORKERS, servers=servers))


def by_peers(folder: Path, delays: str) -> object:
    return weights(run_to_the_end(folder, command("allreduce", delays), workers=WORKERS, servers=None))


def by_peers_in_one_process(folder: Path, delays: str) -> object:
    folder.mkdir(exist_ok=True)
    with Job(folder, {}) as job:
        alone = job.start(("worker", 0), command("inproc", delays, f"workers={WORKERS}"))
        return weights(alone.ended(90))


def by_peers_over_mpi(folder: Path, delays: str) -> object:
    return weights(mpirun(folder, command("dist_sync_mpi", delays), ranks=WORKERS))


def by_mpi(folder: Path, delays: str, code_sums: str) -> object:
    words = command("allreduce_mpi", delays)
    return weights(mpirun(folder, words, ranks=WORKERS, GRADWIRE_CODE_SUMS=code_sums))


PLACES: dict[str, Place] = {
    "servers": by_servers,
    "one server": functools.partial(by_servers, servers=1),
    "peers over zmq": by_peers,
    "peers inproc": by_peers_in_one_process,
    "peers over mpi": by_peers_over_mpi,
    "mpi gathers codes": functools.partial(by_mpi, code_sums="gather"),
    "mpi adds codes": functools.partial(by_mpi, code_sums="integers"),
}
each_place = pytest.mark.parametrize("place", PLACES)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> object:
    ended = run_to_the_end(
        tmp_path_factory.mktemp("reference") / "job", command("dist_sync", ""), workers=WORKERS, servers=2
    )
    assert all(record["moved"] for record in ended.records()), "no weight moved: nothing would be proven"
    return weights(ended)


@each_place
def test_the_weights_are_the_same_whoever_comes_late(reference: object, place: str, tmp_path: Path) -> None:
    assert PLACES[place](tmp_path / "job", "1") == reference


@pytest.mark.soak
@each_place
def test_they_are_the_same_every_time(reference: object, place: str, tmp_path: Path) -> None:
    for run in range(RUNS):
        assert PLACES[place](tmp_path / str(run), str(run)) == reference, f"run {run}"


def test_another_learning_rate_gives_other_weights(reference: object, tmp_path: Path) -> None:
    """So the hash tells jobs apart."""
    other = python("linear_model.py", "codec=2bit:threshold=auto,reply=exact", "rate=1.001e-6")
    assert weights(run_to_the_end(tmp_path / "job", other, workers=WORKERS)) != reference
