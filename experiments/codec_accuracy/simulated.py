"""Scores of simulated workers: the same training as a job's in one process, for a third of its processor time.

A job's processes spend most of it on starting, on each other and on sockets. For codecs without chance the weights are
the job's to the bit, which every simulated run of a seed that has a job's row is held against.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.result import Metric
from runs import TASKS, Run, short_digest

if TYPE_CHECKING:
    from training.task import Task


@dataclass(frozen=True)
class Simulated:
    """One run as it went: a line of simulated.csv."""

    task: str
    arm: str
    seed: int
    metric: Metric
    score: float
    weights: str
    cpu_seconds: float
    flags: str  # a run with others is another run


def carry_out(run: Run) -> Simulated:
    """Trains on one thread of this process, which has run no other task before."""
    from simulation import Setting, train
    from training.loop import weights_sha256

    task = _load(run.task)
    began = time.process_time()
    model = train(Setting(run.arm, run.seed, task=run.task), task)
    return Simulated(
        task=run.task,
        arm=run.arm,
        seed=run.seed,
        metric=task.metric,
        score=task.score(model),
        weights=short_digest(weights_sha256(model)),
        cpu_seconds=round(time.process_time() - began, 2),
        flags=TASKS[run.task].flags,
    )


@functools.cache
def _load(task: str) -> Task:
    from simulation import Setting, load_task

    return load_task(Setting("none", 0, task=task))


def measure(to_do: Sequence[Run], minutes: float | None, keep: Callable[[Simulated], None]) -> int:
    """Does the runs, as many at a time as there are processors; tells keep of each as it ends.

    Args:
        minutes: no run starts later; None: all are done.

    Returns:
        How many were not started.
    """
    began = time.monotonic()
    left = 0
    for task in dict.fromkeys(run.task for run in to_do):
        own = iter([run for run in to_do if run.task == task])
        # A training script's modules have the names of another's: a task has processes of its own.
        with ProcessPoolExecutor(processors(), multiprocessing.get_context("spawn")) as pool:
            under_way = {pool.submit(carry_out, run) for run in itertools.islice(own, processors())}
            while under_way:
                done = next(as_completed(under_way))
                under_way.remove(done)
                keep(done.result())
                if minutes is None or time.monotonic() - began < 60 * minutes:
                    under_way |= {pool.submit(carry_out, run) for run in itertools.islice(own, 1)}
        left += sum(1 for _ in own)
    return left


def processors() -> int:
    return len(os.sched_getaffinity(0))
