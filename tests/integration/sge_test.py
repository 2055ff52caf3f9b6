"""`gradwire run --launcher sge` on a real Grid Engine of one machine: sums, names, exit codes, and no orphan."""

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
from integration.processes import Job, wait_until
from integration.sge_cluster import Cluster, sge_cluster, why_not

WORKERS = 3
pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with sge_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bed(cluster: Cluster) -> Bed:
    return Bed("sge", variables=cluster.environment)


def no_files_are_left(folder: Path) -> bool:
    return not list(folder.glob(".gradwire-sge-*"))


@pytest.mark.parametrize(("store", "servers"), [("dist_sync", "2"), ("allreduce", "0")])
def test_sums_are_those_of_any_launcher(store: str, servers: str, bed: Bed, tmp_path: Path) -> None:
    here = launched.sums_here(tmp_path / "here", workers=WORKERS)
    assert launched.sums(bed, tmp_path, "-s", servers, store=store, workers=WORKERS) == here
    assert no_files_are_left(tmp_path)


def test_a_timeline_is_written_and_refused_where_machines_do_not_see_its_folder(
    cluster: Cluster, bed: Bed, tmp_path: Path
) -> None:
    launched.expect_a_timeline(bed, tmp_path, workers=WORKERS)
    (tmp_path / "unseen").mkdir()
    root = Path(cluster.environment["SGE_ROOT"])
    launched.expect_a_timeline_to_be_refused_that_no_machine_sees(bed, tmp_path / "unseen", [root])


def test_lines_have_their_ranks_and_words_arrive_as_they_were_given(
    cluster: Cluster, bed: Bed, tmp_path: Path
) -> None:
    program = (
        "import os, sys; e = os.environ; print(os.getcwd(), e['GRADWIRE_NUM_WORKERS'], e['SAID'], sys.argv[1]); "
        "print('of', e['GRADWIRE_RANK'], e['DMLC_RANK'], file=sys.stderr); print('no end', end='')"
    )
    words = """a 'b' "c" $d `e`"""
    with bed.job(tmp_path) as job:
        options = ("-s", "0", "--queue", cluster.queue, "--env", f"SAID={words}", "--json", "-")
        launched.start(job, bed, [sys.executable, "-c", program, words], *options, workers=WORKERS)
        ended = launched.end(job)
    assert ended.code == 0, str(ended)
    assert json.loads(ended.out)["exit_code"] == 0
    for rank in range(WORKERS):
        assert f"[worker {rank}] {tmp_path} {WORKERS} {words} {words}\n" in ended.err
        assert f"[worker {rank}] of {rank} {rank}\n" in ended.err
        assert f"[worker {rank}] no end\n" in ended.err


def test_nobody_is_shown_the_key(cluster: Cluster, bed: Bed, tmp_path: Path) -> None:
    """Command lines and what Grid Engine keeps of a job can be read by all; the files of a job by its owner alone."""
    program = (
        "import os, pathlib, subprocess, time\n"
        "def write(name, text):  # whole, for other workers write it too\n"
        "    own = pathlib.Path(f'{name}.{os.getpid()}')\n"
        "    own.write_text(text)\n"
        "    own.rename(name)\n"
        "write('jobs', subprocess.run(['qstat', '-j', '*'], capture_output=True, text=True).stdout)\n"
        "write('key', os.environ['GRADWIRE_JOB_KEY'])\n"
        "time.sleep(600)\n"
    )
    with launched.token() as token, bed.job(tmp_path) as job:
        asked = [item for name, text in cluster.environment.items() for item in ("--env", f"{name}={text}")]
        options = ("-s", "1", "--encrypt", "--env", token, *asked)
        launched.start(job, bed, [sys.executable, "-c", program], *options, workers=WORKERS)
        wait_until((tmp_path / "key").exists, launched.JOB_SECONDS, "a worker to have its key")
        lines = "".join(command_line(pid) for pid in os.listdir("/proc") if pid.isdecimal())
        spooled = [
            path for path in Path(cluster.environment["SGE_ROOT"]).rglob("job_scripts/*") if path.is_file()
        ]
        folders = list(tmp_path.glob(".gradwire-sge-*"))
        modes = {folder.stat().st_mode & 0o777 for folder in folders}
        kept = "".join(path.read_text() for path in spooled)
        job.members["run", 0].process.send_signal(signal.SIGINT)
        launched.end(job, launched.NOTICE_SECONDS)
    key = (tmp_path / "key").read_text()
    assert spooled
    assert modes == {0o700}
    for text in (lines, kept, (tmp_path / "jobs").read_text()):
        assert text
        assert key[:16] not in text


def command_line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def test_the_failing_workers_own_code_comes_back(bed: Bed, tmp_path: Path) -> None:
    said = "rank 2 ended with exit code 7"
    launched.expect_the_failing_workers_code(bed, tmp_path, said, workers=WORKERS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_a_signal_to_the_launcher_ends_all(number: signal.Signals, bed: Bed, tmp_path: Path) -> None:
    job = bed.job(tmp_path)
    with launched.running(job, bed, launched.ENDLESS, workers=WORKERS) as started:
        ended = launched.signal_the_launcher(job, number, started)
    assert ended.code == launched.shell_code(number), str(ended)
    wait_until(lambda: no_files_are_left(tmp_path), launched.NOTICE_SECONDS, "the job's files to be removed")


def test_a_grid_engine_that_is_not_up_is_an_error(tmp_path: Path) -> None:
    with Job(tmp_path, {"SGE_ROOT": str(tmp_path), "SGE_QMASTER_PORT": "1", "SGE_EXECD_PORT": "2"}) as job:
        launched.start(job, Bed("sge"), ["true"], "-s", "0", workers=WORKERS)
        ended = launched.end(job)
    assert ended.code == 1, str(ended)
    assert "run: --launcher sge: qconf" in ended.err, str(ended)
