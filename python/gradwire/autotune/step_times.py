"""How long a worker's steps took: noted in the worker by one hook, read by `gradwire tune`.

A step ends when an optimizer's step() has returned. The clock costs a step one reading of the time, and waits for
nothing, so that steps are what they would be without it. After enough of them every worker writes its times, waits
until all others have, leaves the job as at its end, and ends: what a script does after training is not run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.terminal.whole_file import write_whole

WARM_UP = 5  # steps: keys are declared, scales agreed, caches filled
_OTHERS_SECONDS = 60.0  # for the other workers to have taken the same steps
_LOOK_SECONDS = 0.005


@dataclass(frozen=True)
class StepTimes:
    """What the workers of one job wrote.

    Attributes:
        seconds: of each step after WARM_UP, that of its slowest worker.
        store: by which they had joined their job; None: by none of gradwire's.
        compression: of that store, such as 2bit:threshold=auto,reply=exact; None without one.
        unlike: by what the steps of this job are not alike, so that a few say nothing of the others; None: by nothing.
    """

    seconds: tuple[float, ...]
    store: str | None
    compression: str | None
    unlike: str | None = None

    @property
    def typical(self) -> float:
        """The mean of the middle half: a hiccup does not count, and steps of two kinds in turns both do."""
        return middle_mean(self.seconds)


def middle_mean(values: Sequence[float]) -> float:
    """Returns the mean of values (at least one) without their lowest and their highest quarter."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def file_of(folder: Path, rank: int) -> Path:
    return folder / f"worker-{rank}.json"


def read(folder: Path, workers: int) -> StepTimes | None:
    """Reads what all workers wrote; None where one did not."""
    records = []
    for rank in range(workers):
        try:
            records.append(json.loads(file_of(folder, rank).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
    slowest = tuple(max(step) for step in zip(*(record["seconds"] for record in records), strict=True))
    first = records[0]
    return StepTimes(slowest, first["store"], first["compression"], first["unlike"])


class StepTimer:
    """Notes when the steps of this process's optimizers end. The first optimizer to have taken enough counts."""

    def __init__(self, folder: Path, rank: int, workers: int, steps: int) -> None:
        """steps: to be timed, after WARM_UP."""
        self._folder, self._rank, self._workers = folder, rank, workers
        self._enough = WARM_UP + steps
        self._ends: defaultdict[int, list[float]] = defaultdict(list)  # by the optimizer's id

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """Notes the end of a step; after the last one, ends the process."""
        ends = self._ends[id(optimizer)]
        ends.append(time.perf_counter())
        if len(ends) >= self._enough:
            self.write(ends, optimizer)
            self._await_others()
            _leave()

    def write(self, ends: Sequence[float], optimizer: Any) -> None:
        """Writes the seconds between the ends of an optimizer's steps, at once and whole."""
        store = _joined_store()
        timed = ends[WARM_UP - 1 :]
        record = {
            "seconds": [end - begin for begin, end in itertools.pairwise(timed)],
            "store": None if store is None else store.type,
            "compression": None if store is None else str(store.compression),
            "unlike": _unlike(optimizer, store),
        }
        write_whole(file_of(self._folder, self._rank), json.dumps(record))

    def _await_others(self) -> None:
        """Others may still need this process: it may hold sums of theirs."""
        until = time.monotonic() + _OTHERS_SECONDS
        while not all(file_of(self._folder, rank).exists() for rank in range(self._workers)):
            if time.monotonic() > until:
                print(
                    f"gradwire: worker {self._rank}: its steps are timed, but those of others are not after "
                    f"{_OTHERS_SECONDS:.0f} s; expected every worker to take as many steps",
                    file=sys.stderr,
                    flush=True,
                )
                return
            time.sleep(_LOOK_SECONDS)


def _joined_store() -> Any:
    kv = sys.modules.get("gradwire.kv")
    return None if kv is None else kv.joined()


def _unlike(optimizer: Any, store: Any) -> str | None:
    """Says what has the job's steps not be alike, if anything does. What was not imported is not in use."""
    local_steps = sys.modules.get("gradwire.torch.local.steps")
    if local_steps is not None and local_steps.steps_apart(optimizer):
        return "LocalStepOptimizer"
    auto_codecs = sys.modules.get("gradwire.torch.codecs.auto_codecs")
    if auto_codecs is not None and store is not None and auto_codecs.chooses_for(store):
        return "compression='auto'"
    return None


def _leave() -> None:
    """Ends the process, once its store has left the job, and nobody needs what it holds: servers then end as after any
    training, and the others get their last sums."""
    if (store := _joined_store()) is not None:
        with contextlib.suppress(Exception):  # the times are written: nothing that fails now matters
            store.close()
            sys.modules["gradwire.stores.worker"].outlast_all()  # as at the exit, which does not come
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def start_timer(folder: str, rank: int, workers: int, steps: int) -> None:
    """Hooks a StepTimer into this process's PyTorch."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(StepTimer(Path(folder), rank, workers, steps).after_step)
