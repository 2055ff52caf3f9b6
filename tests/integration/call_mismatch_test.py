"""Ranks whose calls can never meet, as real processes over every transport: all fail at once, and hear who is in what.

Which pairs there are is tests/python/call_mismatch_test.py's; here is how the news travels.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from integration.mpi_jobs import mpirun
from integration.processes import Ended, Run

PATIENCE = 120.0  # seconds; nothing waits for GRADWIRE_SLOW_ABORT, which is longer

# Who has heard waits for the others: a launcher ends all with the first that ends.
PROGRAM = """
import os, pathlib, sys, time
import gradwire as gw, numpy as np
kv = gw.kv.create(sys.argv[1])
kv.init(["first", "second"], [np.zeros(5, np.float32)] * 2)
out = np.ones(5, np.float32)
for _ in range(3):
    kv.pushpull("first", out)
try:
    if kv.rank == 0:
        kv.barrier()
    else:
        kv.pushpull("first", out)
        kv.barrier()
except gw.CallMismatch as error:
    print(f"rank {kv.rank}: {error}", flush=True)
    folder = pathlib.Path(os.environ["TEST_FOLDER"])
    (folder / f"{kv.rank}.heard").touch()
    end = time.monotonic() + 60
    while len(list(folder.glob("*.heard"))) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    sys.exit(7)
print("no error", flush=True)
"""


def assert_told(ended: Ended) -> None:
    # Of all who wait by then: two may be enough to know. Not line by line: mpirun may join those of two ranks.
    told = re.compile(
        r"rank (\d): calls that wait for one another: worker 0 in 'barrier'; "
        r"worker [12](?: and worker 2)? in push_pull, round 3 of key 'first'; "
        "every worker must make the same calls in the same order"
    )
    assert sorted(told.findall(ended.out)) == ["0", "1", "2"], str(ended)
    assert ended.code != 0


@pytest.mark.parametrize(("store", "servers"), [("dist_sync", 2), ("allreduce", 0)])
def test_over_sockets(store: str, servers: int, tmp_path: Path) -> None:
    with Run(tmp_path, {}, workers=3, servers=servers) as job:
        job.launch([sys.executable, "-c", PROGRAM, store])
        ended = job.end(PATIENCE)
    assert_told(ended)


def test_where_a_hosts_workers_sum_first(tmp_path: Path) -> None:
    with Run(tmp_path, {"GRADWIRE_HIERARCHY": "host"}, workers=3, servers=1) as job:
        job.launch([sys.executable, "-c", PROGRAM, "dist_sync"])
        ended = job.end(PATIENCE)
    assert_told(ended)


@pytest.mark.parametrize("store", ["dist_sync_mpi", "allreduce_mpi"])
def test_over_mpi(store: str, tmp_path: Path) -> None:
    assert_told(mpirun(tmp_path, [sys.executable, "-c", PROGRAM, store], ranks=3))


CROSSED = """
import time
import gradwire as gw, numpy as np
kv = gw.kv.create("dist_sync")
kv.init(["first", "second"], [np.zeros(5, np.float32)] * 2)
out = np.ones(5, np.float32)
names = ["first", "second"] if kv.rank == 0 else ["second", "first"]
for _ in range(50):
    for name in names:
        kv.push(name, out)
    for name in names:
        kv.pull(name, out)
    if kv.rank == 1:
        time.sleep(0.05)
kv.barrier()
print("done", flush=True)
"""


def test_calls_in_another_order_that_do_meet_are_none(tmp_path: Path) -> None:
    with Run(tmp_path, {}, workers=3, servers=1) as job:
        job.launch([sys.executable, "-c", CROSSED])
        ended = job.end(PATIENCE)
    assert ended.code == 0, str(ended)
    assert ended.out.count("done") == 3
