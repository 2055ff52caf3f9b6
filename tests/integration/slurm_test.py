"""`gradwire run --launcher slurm` on a real Slurm of one node: sums, names, exit codes, and no orphan."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration import launched
from integration.launched import Bed
from integration.processes import Job, names, python
from integration.slurm_cluster import Cluster, slurm_cluster, why_not

WORKERS = 3
SALLOC = ("salloc", "-n", str(WORKERS))
pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bed(cluster: Cluster) -> Bed:
    return Bed("slurm", variables=cluster.environment)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> object:
    return launched.sums_here(tmp_path_factory.mktemp("here") / "job", workers=WORKERS)


@pytest.mark.parametrize(
    ("store", "servers", "through"),
    [("dist_sync", "2", SALLOC), ("allreduce", "0", SALLOC), ("dist_sync", "1", ())],
    ids=["servers in an allocation", "no servers in an allocation", "no allocation"],
)
def test_sums_are_those_of_any_launcher(
    store: str, servers: str, through: tuple[str, ...], bed: Bed, reference: object, tmp_path: Path
) -> None:
    sums = launched.sums(bed, tmp_path, "-s", servers, store=store, workers=WORKERS, through=through)
    assert sums == reference


def test_workers_go_to_the_nodes_of_the_hostfile_and_lines_have_their_ranks(
    cluster: Cluster, bed: Bed, tmp_path: Path
) -> None:
    program = (
        "import os, sys; e = os.environ; print(e['SLURMD_NODENAME'], e['GRADWIRE_NUM_WORKERS'], e['SAID']); "
        "print(e['INHERITED'], 'of', e['SLURM_PROCID'], file=sys.stderr)"
    )
    with bed.job(tmp_path, INHERITED="one") as job:
        options = ("-s", "0", "-H", f"{cluster.node}:3", "--env", "SAID=a 'b' $c", "--json", "-")
        launched.start(job, bed, [sys.executable, "-c", program], *options, workers=WORKERS)
        ended = launched.end(job)
    assert ended.code == 0, str(ended)
    assert json.loads(ended.out)["exit_code"] == 0
    for rank in range(WORKERS):
        assert f"[worker {rank}] {cluster.node} {WORKERS} a 'b' $c\n" in ended.err
        assert f"[worker {rank}] one of {rank}\n" in ended.err


def test_a_timeline_is_written_and_refused_where_nodes_do_not_see_its_folder(
    cluster: Cluster, bed: Bed, tmp_path: Path
) -> None:
    launched.expect_a_timeline(bed, tmp_path, workers=WORKERS)
    (tmp_path / "unseen").mkdir()
    configuration = Path(cluster.environment["SLURM_CONF"]).parent
    launched.expect_a_timeline_to_be_refused_that_no_machine_sees(bed, tmp_path / "unseen", [configuration])


def test_the_failing_workers_own_code_comes_back(bed: Bed, tmp_path: Path) -> None:
    said = "task 2: Exited with exit code 7"
    launched.expect_the_failing_workers_code(
        bed, tmp_path, said, workers=WORKERS, rank_variable="SLURM_PROCID"
    )


def test_a_killed_worker_is_named_by_the_others(bed: Bed, tmp_path: Path) -> None:
    with bed.job(tmp_path, GRADWIRE_LIVENESS_TIMEOUT="1s") as job:
        endless = python("sums_worker.py", "store=allreduce", "steps=100000", "pause=0.01")
        launched.start(job, bed, endless, "-s", "0", workers=WORKERS)
        job.wait_until_training(WORKERS)
        os.kill(int((tmp_path / "worker1.pid").read_text()), signal.SIGKILL)
        ended = launched.end(job, launched.NOTICE_SECONDS)
    assert ended.code != 0, str(ended)
    assert names(ended.err, ("worker", 1)), str(ended)


# It hears of nothing: who is asked to end must be ended.
SLEEPER = (
    "import os, pathlib, time; rank = os.environ['SLURM_PROCID']; "
    "pathlib.Path(os.environ['TEST_FOLDER'], f'worker{rank}.running').touch(); time.sleep(600)"
)


@pytest.mark.parametrize("through", [SALLOC, ()], ids=["salloc", "no allocation"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_a_signal_to_the_launcher_ends_all(
    number: signal.Signals, through: tuple[str, ...], bed: Bed, tmp_path: Path
) -> None:
    job = bed.job(tmp_path)
    command = [sys.executable, "-c", SLEEPER]
    with launched.running(job, bed, command, workers=WORKERS, through=through) as started:
        ended = launched.signal_the_launcher(job, number, started)
    killed_in_allocation = through and number == signal.SIGKILL  # salloc takes that for no failure
    assert ended.code == (0 if killed_in_allocation else launched.shell_code(number)), str(ended)


@pytest.mark.parametrize("through", [SALLOC, ()], ids=["salloc", "no allocation"])
def test_workers_save_at_signals_of_the_launcher(through: tuple[str, ...], bed: Bed, tmp_path: Path) -> None:
    launched.expect_workers_to_save(bed, tmp_path, "SLURM_PROCID", workers=WORKERS, through=through)


def test_a_signal_before_the_end_of_the_allocation_reaches_workers_alone(bed: Bed, tmp_path: Path) -> None:
    """Slurm counts in minutes, and sends it up to one earlier."""
    through = (*SALLOC, "--time=1", "--signal=USR1@5")
    # These workers never join: the servers' patience must outlast the minute.
    job = bed.job(tmp_path, GRADWIRE_RENDEZVOUS_TIMEOUT="300s")
    variables = ("--env", "RANK_VARIABLE=SLURM_PROCID")
    with job:
        launched.start(
            job,
            bed,
            [sys.executable, "-c", launched.SAVER],
            "-s",
            "1",
            *variables,
            workers=WORKERS,
            through=through,
        )
        job.wait_until_training(WORKERS)
        launched.await_saved(tmp_path, WORKERS)
        (tmp_path / "end").touch()
        ended = launched.end(job)
    assert ended.code == 0, str(ended)
    for rank in range(WORKERS):
        assert f"saved {rank} after {int(signal.SIGUSR1)}\n" in ended.out, str(ended)


def test_slurm_that_is_not_up_is_an_error(tmp_path: Path) -> None:
    with Job(tmp_path, {"SLURM_CONF": str(tmp_path / "nothing.conf")}) as job:
        launched.start(job, Bed("slurm"), ["true"], "-s", "0", workers=WORKERS)
        ended = launched.end(job)
    assert ended.code == 1, str(ended)
    assert "run: --launcher slurm: sinfo" in ended.err, str(ended)
