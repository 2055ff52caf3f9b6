"""Ctrl-C after and beside gradwire's own waits: Python's handler is what the script left it."""

from __future__ import annotations

import subprocess
import sys

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

_AFTERWARDS = """
other = threading.Thread(target=ranks[1].barrier)
other.start()
ranks[0].barrier()
other.join()
readable, writable = os.pipe()
late = threading.Timer(8.0, os.write, (writable, b"late"))
late.start()
threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
try:
    os.read(readable, 4)
except KeyboardInterrupt:
    print("interrupted" if late.is_alive() else "begun again")
late.cancel()
for rank in ranks.values(): rank.close()
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


@pytest.mark.parametrize(
    ("script", "said"),
    [
        # The handler had come back with SA_RESTART: read() began again, and Ctrl-C was heard when it was over.
        pytest.param(_AFTERWARDS, "interrupted\n", id="a call of the user's own comes after it"),
        pytest.param(_ON_ANOTHER_THREAD, "heard\n", id="the main thread is free"),
        pytest.param(_WHILE_IGNORED, "lives\n", id="Ctrl-C is ignored, as under nohup"),
    ],
)
def test_a_collective_leaves_ctrl_c_to_the_script_where(script: str, said: str) -> None:
    words = [sys.executable, "-c", _TWO_RANKS + script]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, said), done.stderr
