"""How many threads a process uses where nobody says."""

from __future__ import annotations

import os

_MOST_CODEC_THREADS = 4


def usable_cores() -> int:
    """Returns the cores that this process may run on: fewer than the machine has under taskset, Slurm or a cpuset."""
    return len(os.sched_getaffinity(0))


def default_codec_threads(cores: int | None = None) -> int:
    """Returns the threads that encode and decode in a worker with so many cores; by default those of this process."""
    return max(1, min(_MOST_CODEC_THREADS, (usable_cores() if cores is None else cores) // 2))
