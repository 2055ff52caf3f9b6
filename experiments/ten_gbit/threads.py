"""CPU time of a round by thread, from the scheduler's clocks (/proc/PID/task/TID/schedstat) of all workers.

The time of a job of 23 rounds less that of one of 3, so that start and end do not count. A worker's main thread is left
out, since the bench checks every sum there.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

FEW, MANY = 3, 23
_PAUSE_SECONDS = 0.02
_WORKERS = {"gradwire.bench.worker": "gradwire", "gradwire.bench.gloo_worker": "gloo"}
_NANOSECONDS = 1e-9

Thread = tuple[str, str]  # system, name


def measure(words: str, ranks: int, gradient_bytes: int) -> dict[Thread, float]:
    """Returns CPU seconds for each GB of gradient in `gradwire bench` with these words."""
    spent = {rounds: _spent(f"{words} --repeat {rounds} --launches 1") for rounds in (FEW, MANY)}
    gigabytes = (MANY - FEW) * ranks * gradient_bytes / 1e9
    return {thread: (spent[MANY][thread] - spent[FEW][thread]) / gigabytes for thread in sorted(spent[MANY])}


def _spent(words: str) -> Counter[Thread]:
    """What the threads of one bench's workers took in all, but for main threads."""
    bench = subprocess.Popen(
        [sys.executable, "-m", "gradwire.cli", "bench", *words.split()], stdout=subprocess.DEVNULL
    )
    last: dict[Path, tuple[Thread, float]] = {}  # of each thread: its clock, when last seen
    try:
        while bench.poll() is None:
            for process, system in _workers():
                _read(process, system, last)
            time.sleep(_PAUSE_SECONDS)
    finally:
        bench.terminate()
        bench.wait()
    if bench.returncode != 0:
        raise SystemExit(f"gradwire bench {words} failed")
    spent: Counter[Thread] = Counter()
    for thread, seconds in last.values():
        spent[thread] += seconds
    return spent


def _workers() -> list[tuple[Path, str]]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        found += [(process, system) for module, system in _WORKERS.items() if module in words]
    return found


def _read(process: Path, system: str, last: dict[Path, tuple[Thread, float]]) -> None:
    """Of all threads but the main one; of those that have ended the last reading stays."""
    with contextlib.suppress(OSError):
        for name in os.listdir(process / "task"):
            if name == process.name:
                continue
            task = process / "task" / name
            clock = int((task / "schedstat").read_text().split()[0]) * _NANOSECONDS
            last[task] = ((system, (task / "comm").read_text().strip()), clock)
