"""A worker that an error of the user's ends: the others say that it failed, and the launcher's last line says which
worker was first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from integration.processes import PROGRAMS, Ended, Run

SECONDS = 120
SCRIPT = """
import sys, numpy, gradwire
kv = gradwire.kv.create(sys.argv[1])
kv.init("w", numpy.zeros(1000, numpy.float32))
gradient, total = numpy.ones(1000, numpy.float32), numpy.zeros(1000, numpy.float32)
for step in range(30):
    if kv.rank == 1 and step == 20:
        if sys.argv[2] == "raise": raise ValueError("no such image: /data/7.png")
        sys.exit(7)
    if sys.argv[3] == "barrier": kv.barrier()
    elif sys.argv[3] == "all_reduce": kv.collectives.all_reduce(gradient)
    else: kv.pushpull("w", gradient, out=total)
"""


def run(folder: Path, store: str, end: str, call: str) -> Ended:
    with Run(folder, {}) as job:
        servers = "1" if store == "dist_sync" else "0"
        words = [str(PROGRAMS / "gradwire"), "run", "-n", "3", "-s", servers]
        return job.start(("run", 0), [*words, sys.executable, "-c", SCRIPT, store, end, call]).ended(SECONDS)


@pytest.mark.parametrize(
    ("store", "call"),
    [
        ("dist_sync", "pushpull"),
        ("dist_sync", "barrier"),
        ("allreduce", "pushpull"),
        ("allreduce", "all_reduce"),
    ],
)
def test_the_exception_that_ended_a_worker_reaches_all_and_is_the_last_line(
    store: str, call: str, tmp_path: Path
) -> None:
    """It had been "worker 1 left the job before step 20 ...; every worker must run the same number of steps"."""
    ended = run(tmp_path, store, "raise", call)
    assert ended.code == 1, str(ended)
    for rank in (0, 2):
        own = "\n".join(line for line in ended.err.splitlines() if line.startswith(f"[worker {rank}]"))
        assert "worker 1 failed" in own, str(ended)
        assert "ValueError: no such image: /data/7.png" in own, str(ended)
    assert "every worker must run the same number of steps" not in ended.err, str(ended)
    last = "worker 1 failed first: ValueError: no such image: /data/7.png; see its traceback above"
    assert ended.err.splitlines()[-1].endswith(last), str(ended)


def test_an_exit_code_is_named_as_an_exception_is(tmp_path: Path) -> None:
    ended = run(tmp_path, "dist_sync", "exit", "pushpull")
    assert ended.code == 7, str(ended)
    assert "worker 1 failed before step 20 of key 0: exit code 7" in ended.err, str(ended)
    last = "worker 1 failed first: it ended with exit code 7"
    assert ended.err.splitlines()[-1].endswith(last), str(ended)
