"""GRADWIRE_PLACEMENT=auto in real jobs: one decision on all ranks, told once, and the sums of any placement."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from integration.mpi_jobs import mpirun
from integration.processes import PROGRAMS, Ended, Job, agreed, python, run_to_the_end

WORKERS = 3
REASON = re.compile(
    r"gradwire: placement auto: (\w+) \((\w+)\), for ([^,]+) a round, \d workers and a link of .*expected "
)
ARGUMENTS = ("steps=3", "sizes=large", "codecs=2bit:threshold=auto")


def command(store: str) -> list[str]:
    return python("sums_worker.py", f"store={store}", *ARGUMENTS)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> object:
    return agreed(
        run_to_the_end(tmp_path_factory.mktemp("named") / "job", command("dist_sync"), workers=WORKERS),
        WORKERS,
    )


def decision(ended: Ended) -> tuple[str, str, str]:
    """Placement, store and payload of the one line that says so."""
    told = REASON.findall(ended.err)
    assert len(told) == 1, str(ended)
    return told[0]


def run(folder: Path, *options: str, **variables: str) -> Ended:
    words = [str(PROGRAMS / "gradwire"), "run", "-n", str(WORKERS), "--placement", "auto", *options]
    with Job(folder, variables) as job:
        return job.start(("run", 0), [*words, *command("dist_sync")]).ended(90)


@pytest.mark.parametrize("servers", [[], ["-s", "1"]], ids=["servers if used", "one server"])
def test_peers_where_servers_would_share_the_workers_links(
    servers: list[str], reference: object, tmp_path: Path
) -> None:
    ended = run(tmp_path, *servers)
    assert decision(ended) == ("peers", "allreduce", "100 MB")
    assert agreed(ended, WORKERS) == reference


def test_servers_where_they_have_hosts_of_their_own(reference: object, tmp_path: Path) -> None:
    """Who starts the job knows where servers are; here their hosts are a claim, the rest is real."""
    program = (
        "import os, runpy, sys; os.environ['GRADWIRE_SERVER_HOSTS'] = 'apart'; sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    words = [str(PROGRAMS / "gradwire"), "run", "-n", str(WORKERS), "-s", "3", "--placement", "auto"]
    with Job(tmp_path, {}) as job:
        worker = [sys.executable, "-c", program, *command("dist_sync")[1:]]
        ended = job.start(("run", 0), [*words, *worker]).ended(90)
    assert decision(ended) == ("servers", "dist_sync", "100 MB")
    assert agreed(ended, WORKERS) == reference


@pytest.mark.parametrize(
    ("payload", "placement"), [("1GB", ("peers", "dist_sync_mpi")), ("64", ("native", "allreduce_mpi"))]
)
def test_over_mpi_the_payload_decides(payload: str, placement: tuple[str, str], tmp_path: Path) -> None:
    """Two ranks exchange 64 bytes in one message each by MPI's doubling, and in two by way of their shares."""
    ended = mpirun(
        tmp_path / "job",
        command("dist_sync_mpi"),
        ranks=2,
        GRADWIRE_PLACEMENT="auto",
        GRADWIRE_PAYLOAD_BYTES=payload,
    )
    assert decision(ended)[:2] == placement
    named = run_to_the_end(tmp_path / "named", command("dist_sync"))
    assert agreed(ended, 2) == agreed(named, 2)


def test_without_a_place_to_meet_the_error_says_so(tmp_path: Path) -> None:
    with Job(tmp_path, {"GRADWIRE_PLACEMENT": "auto"}) as job:
        alone = job.start(
            ("worker", 0), [sys.executable, "-c", "import gradwire; gradwire.kv.create('dist_sync')"]
        )
        ended = alone.ended(30)
    assert ended.code == 1
    assert "`gradwire run --placement auto` or torchrun, or set GRADWIRE_MASTER=tcp://host:port" in ended.err
