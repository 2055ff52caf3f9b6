"""`gradwire run --faults`: a user's own job over a bad network gives what it gives over a good one, and says so."""

from __future__ import annotations

import re
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
