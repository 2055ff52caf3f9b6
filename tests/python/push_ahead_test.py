"""push() takes no more than GRADWIRE_PUSH_AHEAD_BYTES of rounds that cannot begin; then it waits."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from gradwire import RowSparse
from gradwire.kv import KVStore
from gradwire.settings import definitions as settings
from gradwire.stores import connect as joining
from numpy.testing import assert_array_equal
from python.inproc_ranks import DEADLINE, await_event, run_ranks

pytestmark = pytest.mark.usefixtures("no_job")

ROUNDS = 10
PUSH_BYTES = 1000 * 4 + 1024  # of 1000 float32, with what is kept beside them


def test_the_setting_reaches_the_engine() -> None:
    values = settings.read({"GRADWIRE_PUSH_AHEAD_BYTES": "3MiB"})
    assert joining._engine_options(values)["push_ahead_bytes"] == 3 * 2**20
    assert settings.read({}).push_ahead_bytes == 256 * 2**20


def _await_bytes(kv: KVStore, least: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while kv.engine.ahead_bytes() < least:
        assert time.monotonic() < deadline, f"{kv.engine.ahead_bytes()} bytes are taken, not {least}"
        time.sleep(0.001)


@pytest.mark.parametrize("bound", [0, 3 * PUSH_BYTES, 2**30])
def test_pushes_ahead_of_another_worker_are_bounded_and_summed_in_order(bound: int) -> None:
    full = threading.Event()
    room = min(bound // PUSH_BYTES, ROUNDS - 1)

    def body(kv: KVStore) -> None:
        kv.init("w", np.zeros(1000, np.float32))
        if kv.rank == 0:

            def push() -> None:
                for i in range(ROUNDS):
                    kv.push("w", np.full(1000, i, np.float32))

            pushing = threading.Thread(target=push, daemon=True)
            pushing.start()
            _await_bytes(kv, room * PUSH_BYTES)
            assert kv.engine.ahead_bytes() == room * PUSH_BYTES
            full.set()
            pushing.join(DEADLINE)
            assert not pushing.is_alive()
            last = np.zeros(1000, np.float32)
            kv.pull("w", last)
            assert_array_equal(last, np.full(1000, 101 * (ROUNDS - 1)))
            assert kv.engine.ahead_bytes() == 0
        else:
            await_event(full, "what fits")
            for i in range(ROUNDS):
                value = np.full(1000, 100 * i, np.float32)
                kv.pushpull("w", value)
                assert_array_equal(value, np.full(1000, 101 * i))
        kv.barrier()

    run_ranks(2, body, push_ahead_bytes=bound)


def test_rows_ahead_of_another_worker_are_bounded_and_summed_in_order() -> None:
    bound, begun = 4096, threading.Event()

    def body(kv: KVStore) -> None:
        kv.init("t", RowSparse([], [], shape=(9, 100)))
        if kv.rank == 0:
            taken = []

            def push() -> None:
                for i in range(ROUNDS):
                    kv.push("t", RowSparse([3], np.full((1, 100), i, np.float32)))
                    taken.append(kv.engine.ahead_bytes())

            pushing = threading.Thread(target=push, daemon=True)
            pushing.start()
            _await_bytes(kv, bound)
            begun.set()
            pushing.join(DEADLINE)
            assert not pushing.is_alive()
            assert max(taken) < bound + 2 * 2048  # a push goes to two servers
        else:
            await_event(begun, "as much as fits")
            out = RowSparse([], [])
            for i in range(ROUNDS):
                kv.pushpull("t", RowSparse([3], np.full((1, 100), 100 * i, np.float32)), out=out)
                assert_array_equal(out.rows, np.full((1, 100), 101 * i))
        kv.barrier()

    run_ranks(2, body, push_ahead_bytes=bound)


_INTERRUPTED = """
import os, signal, threading
import numpy as np
from gradwire import _core, kv
from gradwire.settings import definitions as settings

network = _core.InprocNetwork(2)
stores = {}
def join(rank):
    engine = network.connect(rank, codec_threads=1, push_ahead_bytes=0)
    stores[rank] = kv.KVStore("allreduce", engine, settings.read())
    stores[rank].init("w", np.zeros(1000, np.float32))
joining = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
for thread in joining: thread.start()
for thread in joining: thread.join()
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True: stores[0].push("w", np.ones(1000, np.float32))
except KeyboardInterrupt:
    print("interrupted", flush=True)
out = np.zeros(1000, np.float32)
stores[1].pushpull("w", out)
print(*set(out.tolist()))
os._exit(0)
"""


def test_ctrl_c_ends_a_push_that_waits() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n1.0\n"), done.stderr
