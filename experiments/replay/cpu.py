"""What the machine's cores and processes were busy with, sampled while a job runs.

Threading: a Watch has a thread of its own, which ends with close(); before that nobody else reads its samples. The rest
is values and pure functions.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Key = TypeVar("Key")

_PROC = Path("/proc")
_INTERVAL = 0.5  # seconds between samples
_WINDOW = 1.0  # seconds: a hundred of the kernel's ticks, and fewer than a step of VGG16


@dataclass(frozen=True)
class Sample:
    """Seconds that each core and each process had been busy, when time.monotonic() was `at`.

    cores: by number, the kernel's own work and what a hypervisor took away included. processes: by pid and the time it
    was started at; names: theirs.
    """

    at: float
    cores: Mapping[int, float]
    processes: Mapping[tuple[int, int], float]
    names: Mapping[tuple[int, int], str]


@dataclass(frozen=True)
class Load:
    """Shares of a span of time. mean: of all cores. core, process: of one core, by the busiest one in any window; a
    process of several threads may have more than 1."""

    mean: float
    core: float
    process: float
    process_name: str
    window_seconds: float


def sample() -> Sample:
    """Reads the clocks of all processes here, whosever they are."""
    ticks = os.sysconf("SC_CLK_TCK")
    processes, names = {}, {}
    for entry in os.scandir(_PROC):
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended
                key, name, busy = _process(int(entry.name), (_PROC / entry.name / "stat").read_text())
                processes[key], names[key] = busy / ticks, name
    cores = {
        core: busy / ticks
        for core, busy in _cores((_PROC / "stat").read_text()).items()
        if core in os.sched_getaffinity(0)
    }
    return Sample(time.monotonic(), cores, processes, names)


def _cores(stat: str) -> dict[int, int]:
    """Ticks by core: all but idle and waiting for disks; guests' are the user's already."""
    found = {}
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields[:8])
            found[int(name.removeprefix("cpu"))] = user + nice + system + irq + softirq + steal
    return found


def _process(pid: int, stat: str) -> tuple[tuple[int, int], str, int]:
    name, _, rest = stat.partition("(")[2].rpartition(")")  # a name may hold anything
    fields = rest.split()  # the first is the state, the third field of proc(5)
    return (pid, int(fields[19])), name, int(fields[11]) + int(fields[12])


def load(samples: Sequence[Sample], begin: float, end: float) -> Load:
    """Returns what was busy from begin to end, of samples from before it to after it."""
    between = [one for one in samples if begin < one.at < end]
    within = [_at(samples, begin), *between, _at(samples, end)]
    windows = list(_windows(within)) or [(within[0], within[-1])]
    core = process = 0.0
    name = ""
    for first, last in windows:
        core = max(core, *_shares(first, last, first.cores, last.cores).values())
        for key, share in _shares(first, last, first.processes, last.processes).items():
            if share > process:
                process, name = share, last.names[key]
    means = _shares(within[0], within[-1], within[0].cores, within[-1].cores)
    return Load(
        mean=sum(means.values()) / len(means),
        core=core,
        process=process,
        process_name=name,
        window_seconds=min(last.at - first.at for first, last in windows),
    )


def _at(samples: Sequence[Sample], when: float) -> Sample:
    """What a sample at that time would have been: busy seconds are taken to have grown evenly between two."""
    after = next((one for one in samples if one.at >= when), samples[-1])
    before = max((one for one in samples if one.at <= when), key=lambda one: one.at, default=samples[0])
    share = (when - before.at) / (after.at - before.at) if after.at > before.at else 0.0

    def grown(begin: Mapping[Key, float], end: Mapping[Key, float]) -> dict[Key, float]:
        return {key: begin[key] + share * (busy - begin[key]) for key, busy in end.items() if key in begin}

    cores, processes = grown(before.cores, after.cores), grown(before.processes, after.processes)
    return Sample(when, cores, processes, after.names)


def _windows(samples: Sequence[Sample]) -> Iterator[tuple[Sample, Sample]]:
    """The shortest windows of _WINDOW or more, one from each sample on that has one."""
    for index, first in enumerate(samples):
        for last in samples[index + 1 :]:
            if last.at - first.at >= _WINDOW:
                yield first, last
                break


def _shares(
    first: Sample, last: Sample, before: Mapping[Key, float], after: Mapping[Key, float]
) -> dict[Key, float]:
    """Of the time between two samples, by what was there at both or began in between."""
    seconds = max(1e-9, last.at - first.at)
    return {key: (busy - before.get(key, 0.0)) / seconds for key, busy in after.items()}


class Watch:
    """Samples from now on until it is closed."""

    def __init__(self) -> None:
        self._samples = [sample()]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Takes a last sample and ends."""
        self._closed.set()
        self._thread.join()
        self._samples.append(sample())

    def load(self, begin: float, end: float) -> Load:
        """Returns what was busy between two times of time.monotonic(), once the watch is closed."""
        return load(self._samples, begin, end)

    def _run(self) -> None:
        while not self._closed.wait(_INTERVAL):
            self._samples.append(sample())
