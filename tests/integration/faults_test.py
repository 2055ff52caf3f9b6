"""`gradwire run --faults`: a user's own job over a bad network gives what it gives over a good one, and says so."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from integration.processes import PROGRAMS, Ended, Run, agreed, python

ALL_FOUR = "seed=5,drop=1%,duplicate=1%,reorder=1%,corrupt=1%"
CODECS = "none;fp16;2bit:threshold=0.5;topk:ratio=0.01"


def run(folder: Path, store: str, steps: int, spec: str | None, seconds: float) -> Ended:
    folder.mkdir()
    servers = 2 if store == "dist_sync" else 0
    with Run(folder, {"GRADWIRE_RETRY_TIMEOUT": "50ms"}, servers=servers) as job:
        words = [str(PROGRAMS / "gradwire"), "run", "-n", "2", "-s", str(servers)]
        words += [] if spec is None else ["--faults", spec]
        words += python("sums_worker.py", f"store={store}", f"codecs={CODECS}", f"steps={steps}")
        return job.start(("run", 0), words).ended(seconds)


def compare(folder: Path, store: str, steps: int, seconds: float) -> None:
    disturbed = run(folder / "disturbed", store, steps, ALL_FOUR, seconds)
    assert agreed(disturbed, 2) == agreed(run(folder / "good", store, steps, None, seconds), 2)
    assert f"gradwire: runs under faults: {ALL_FOUR}" in disturbed.err
    for worker in ("worker 0", "worker 1"):
        assert re.search(rf"{worker}: faults: \d+ frames: .*\d+ dropped.*", disturbed.err), str(disturbed)
    if store == "dist_sync":
        for server in ("server 0", "server 1"):
            assert re.search(rf"\[{server}\] .*faults: \d+ frames: ", disturbed.err), str(disturbed)


@pytest.mark.parametrize("store", ["dist_sync", "allreduce"])
def test_a_job_under_faults_gives_the_same_sums(store: str, tmp_path: Path) -> None:
    compare(tmp_path, store, steps=60, seconds=120)


@pytest.mark.soak
@pytest.mark.parametrize("store", ["dist_sync", "allreduce"])
def test_ten_thousand_rounds_under_faults_give_the_same_sums(store: str, tmp_path: Path) -> None:
    compare(tmp_path, store, steps=10_000, seconds=7200)


def test_a_spec_that_is_not_valid_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with Run(tmp_path, {}) as job:
        words = [str(PROGRAMS / "gradwire"), "run", "-n", "1", "--faults", "drop=2x", "true"]
        ended = job.start(("run", 0), words).ended(30)
    assert ended.code == 2, str(ended)
    assert "--faults: 'drop=2x' is not valid: expected a share of the frames" in ended.err, str(ended)


@pytest.mark.parametrize(
    ("spec", "servers", "text"),
    [
        ("kill=worker:7@push", "1", "there is no worker:7 in this job, which has worker:0 to worker:1"),
        ("slow=worker:9@1mbit", "1", "there is no worker:9 in this job, which has worker:0 to worker:1"),
        ("kill=server:1@push", "1", "there is no server:1 in this job, which has server:0"),
        ("kill=server:2@push", "0", "there is no server:2 in this job, which has server:0 to server:1"),
        ("kill=server:0@barrier", "1", "expected an event of servers: start, init, "),
    ],
)
def test_a_fault_that_can_never_happen_is_refused(spec: str, servers: str, text: str, tmp_path: Path) -> None:
    """The job had gone through, undisturbed, with exit code 0 and no word of it."""
    with Run(tmp_path, {}) as job:
        words = [str(PROGRAMS / "gradwire"), "run", "-n", "2", "-s", servers, "--faults", spec, "true"]
        ended = job.start(("run", 0), words).ended(30)
    assert ended.code == 2, str(ended)
    assert text in ended.err, str(ended)


def test_where_more_workers_may_come_their_ranks_are_not_known(tmp_path: Path) -> None:
    with Run(tmp_path, {}) as job:
        words = [str(PROGRAMS / "gradwire"), "run", "-n", "1", "-s", "1", "--on-failure", "continue"]
        ended = job.start(("run", 0), [*words, "--faults", "kill=worker:7@push", "true"]).ended(30)
    assert "there is no worker:7" not in ended.err, str(ended)


@pytest.mark.parametrize("store", ["dist_sync", "allreduce"])
def test_a_kill_that_does_not_come_is_told_at_the_end(store: str, tmp_path: Path) -> None:
    script = (
        f"import numpy, gradwire; kv = gradwire.kv.create({store!r}); kv.init('k', numpy.zeros(4, numpy.float32)); "
        "kv.push('k', numpy.ones(4, numpy.float32)); out = numpy.zeros(4, numpy.float32); kv.pull('k', out)"
    )
    with Run(tmp_path, {}) as job:
        words = [str(PROGRAMS / "gradwire"), "run", "-n", "2", "-s", "1" if store == "dist_sync" else "0"]
        words += ["--faults", "kill=worker:1@push:100,kill=server:0@checkpoint", sys.executable, "-c", script]
        ended = job.start(("run", 0), words).ended(60)
    assert ended.code == 0, str(ended)
    assert re.search(
        r"worker 1: faults: .*; kill=worker:1@push:100 did not happen: worker 1 came to [1-9]", ended.err
    ), str(ended)
    assert "kill=server:0@checkpoint:1 did not happen: server 0 came to 0" in ended.err, str(ended)
    assert "kill=worker:1@push:100 did not happen: worker 0" not in ended.err, str(ended)
