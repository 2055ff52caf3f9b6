"""Ctrl-C after and beside gradwire's own waits: Python's handler is what the script left it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import gradwire as gw
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("no_job")

_TWO_RANKS = """
import os, signal, threading, time
from gradwire import _core

network = _core.InprocNetwork(2)
ranks = {}
def join(rank): ranks[rank] = network.connect(rank, codec_threads=1)
joining = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
for thread in joining: thread.start()
for thread in joining: thread.join()
"""

_ON_ANOTHER_THREAD = """
waiting = threading.Thread(target=ranks[0].barrier)
waiting.start()
time.sleep(0.3)
try:
    signal.raise_signal(signal.SIGINT)
    time.sleep(10)
except KeyboardInterrupt:
    print("heard")
ranks[1].barrier()
waiting.join()
for rank in ranks.values(): rank.close()
"""

_WHILE_IGNORED = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
def interrupt():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)
    ranks[1].barrier()
late = threading.Thread(target=interrupt)
late.start()
ranks[0].barrier()
late.join()
print("lives")
for rank in ranks.values(): rank.close()
"""


def test_a_collective_leaves_calls_of_the_users_own_to_be_interrupted() -> None:
    """The handler had come back with SA_RESTART: read() began again, and Ctrl-C was heard when it was over."""
    store = gw.kv.create("local")
    store.init("w", np.zeros(4, np.float32))
    store.close()
    readable, writable = os.pipe()
    main = threading.main_thread().ident
    assert main is not None
    late = threading.Timer(8.0, os.write, (writable, b"late"))
    timers = [threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)), late]
    for timer in timers:
        timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            os.read(readable, 4)
        assert late.is_alive(), "read() was begun again"
    finally:
        late.cancel()
        for timer in timers:
            timer.join()
        os.close(readable)
        os.close(writable)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        pytest.param(_ON_ANOTHER_THREAD, "heard\n", id="the main thread is free"),
        pytest.param(_WHILE_IGNORED, "lives\n", id="Ctrl-C is ignored, as under nohup"),
    ],
)
def test_a_collective_does_not_let_ctrl_c_end_the_process_where(script: str, said: str) -> None:
    words = [sys.executable, "-c", _TWO_RANKS + script]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, said), done.stderr
