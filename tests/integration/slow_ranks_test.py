"""A rank that is late for a collective is named while it is awaited; and a job that has given it up has one cause."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from integration.processes import PROGRAMS, Ended, Run

SCRIPT = """
import sys, time, numpy, gradwire
kv = gradwire.kv.create(sys.argv[1])
kv.init("k", numpy.zeros(8, numpy.float32))
if kv.rank == 1: time.sleep(4)
try:
    if sys.argv[2] == "barrier": kv.barrier()
    elif sys.argv[2] == "init": kv.init("j", numpy.zeros(8, numpy.float32))
    else: kv.collectives.all_reduce(numpy.ones(8, numpy.float32))
except Exception as error:
    print(type(error).__name__, error, flush=True)
    raise
print("past it", flush=True)
"""


def run(folder: Path, store: str, call: str, **settings: str) -> Ended:
    with Run(folder, settings) as job:
        words = [str(PROGRAMS / "gradwire"), "run", "-n", "2", "-s", "1" if store == "dist_sync" else "0"]
        return job.start(("run", 0), [*words, sys.executable, "-c", SCRIPT, store, call]).ended(60)


@pytest.mark.parametrize(
    ("store", "call"), [("dist_sync", "barrier"), ("allreduce", "init"), ("dist_sync", "all_reduce")]
)
def test_who_is_awaited_in_a_collective_is_named(store: str, call: str, tmp_path: Path) -> None:
    """Nothing had been said, though who is missing is asked each second."""
    ended = run(tmp_path, store, call, GRADWIRE_SLOW_WARNING="1s")
    assert ended.code == 0, str(ended)
    told = re.findall(
        r"gradwire: worker (\d): exchange \d+ \('[a-z_]+'\) has waited [12] s for (.*)", ended.err
    )
    assert told == [("0", "worker 1")], str(ended)


def test_who_comes_after_the_others_gave_up_hears_why(tmp_path: Path) -> None:
    """It had gone past the barrier alone, and the job failed later, over something else."""
    ended = run(tmp_path, "dist_sync", "barrier", GRADWIRE_SLOW_ABORT="2s")
    cause = r"exchange \d+ \('barrier'\): worker 1 did not come within 2000 ms"
    assert re.search(rf"worker 0\] TimeoutError {cause}", ended.out), str(ended)
    assert re.search(rf"worker 1\] TransportError worker 0 gave up: {cause}", ended.out), str(ended)
    assert "past it" not in ended.out, str(ended)
    assert ended.code == 1, str(ended)
