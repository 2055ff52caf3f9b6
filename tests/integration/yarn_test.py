"""`gradwire run --launcher yarn` over a stand-in for Hadoop's command, whose containers are processes here: it was
never run on a real cluster."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from integration import launched
from integration.launched import Bed
from integration.processes import Job, wait_until
from integration.stand_ins import stand_in

WORKERS = 2


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    """yarn is the stand-in."""
    return Bed("yarn", variables=stand_in("yarn", tmp_path))


def services(folder: Path) -> list[Path]:
    return list((folder / "state").glob("*.service"))


def test_sums_are_those_of_any_launcher(bed: Bed, tmp_path: Path) -> None:
    here = launched.sums_here(tmp_path / "here")
    assert launched.sums(bed, tmp_path, "-s", "2", "--queue", "gpu", "--memory", "2GB", "--encrypt") == here
    assert services(tmp_path) == []


def test_lines_have_their_ranks_and_words_arrive_as_they_were_given(bed: Bed, tmp_path: Path) -> None:
    program = (
        "import os, sys; e = os.environ; print(e['GRADWIRE_NUM_WORKERS'], e['SAID'], sys.argv[1], e['DMLC_RANK']); "
        "print('of', e['GRADWIRE_RANK'], file=sys.stderr); print('no end', end='')"
    )
    words = """a 'b' "c" $d ${COMPONENT_ID} {{PWD}} `e`"""
    with bed.job(tmp_path) as job:
        options = ("-s", "0", "--env", f"SAID={words}", "--json", "-")
        launched.start(job, bed, [sys.executable, "-c", program, words], *options)
        ended = launched.end(job)
    assert ended.code == 0, str(ended)
    for rank in range(WORKERS):
        assert f"[worker {rank}] {WORKERS} {words} {words} {rank}\n" in ended.err
        assert f"[worker {rank}] of {rank}\n" in ended.err
        assert f"[worker {rank}] no end\n" in ended.err


def test_the_failing_workers_own_code_comes_back(bed: Bed, tmp_path: Path) -> None:
    launched.expect_the_failing_workers_code(bed, tmp_path, "rank 1 ended with exit code 7")
    assert services(tmp_path) == []


def test_a_program_that_is_not_there_is_127(bed: Bed, tmp_path: Path) -> None:
    with bed.job(tmp_path, GRADWIRE_LIVENESS_TIMEOUT="1s") as job:
        launched.start(job, bed, ["sh", "-c", "exec /no/such/program"], "-s", "0")
        ended = launched.end(job)
    assert ended.code == 127, str(ended)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_a_signal_to_the_launcher_ends_all(number: signal.Signals, bed: Bed, tmp_path: Path) -> None:
    job = bed.job(tmp_path)
    with launched.running(job, bed, launched.ENDLESS) as started:
        ended = launched.signal_the_launcher(job, number, started)
    assert ended.code == launched.shell_code(number), str(ended)
    wait_until(lambda: not services(tmp_path), launched.NOTICE_SECONDS, "services to be destroyed")


def test_a_yarn_that_is_not_hadoops_is_an_error(tmp_path: Path) -> None:
    yarn = tmp_path / "yarn"
    yarn.write_text("#!/bin/sh\necho 'error Command \"node\" not found.' >&2\nexit 1\n")
    yarn.chmod(0o755)
    with Job(tmp_path, {"PATH": f"{tmp_path}:{os.environ['PATH']}"}) as job:
        launched.start(job, Bed("yarn"), ["true"], "-s", "0")
        ended = launched.end(job)
    assert ended.code == 1, str(ended)
    assert "yarn node -list shows no running node" in ended.err, str(ended)
    assert "is yarn Hadoop's?" in ended.err, str(ended)
