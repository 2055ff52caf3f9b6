"""A process's own part of a timeline: begun when its store is opened, written when it is closed."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire import _core

OTHER_JOBS = "job-of-rank-*"  # folders of parts, where the ranks of one launch have formed several jobs
_CLOCK_SECONDS = 2.0  # in which the servers' clocks are read, or not at all


def folder_of_job(folder: str, rank: int) -> str:
    """Returns where the job that this rank of the launch leads leaves its parts: beside those of rank 0's job."""
    return folder if rank == 0 else str(Path(folder, OTHER_JOBS.replace("*", str(rank))))


class Recorder:
    """Traces one engine, from now on."""

    def __init__(self, engine: _core.Engine, store: str, folder: str) -> None:
        """folder: where the part will be; it is made if it is not there. One that an earlier job left there goes."""
        self._engine, self._store, self._folder = engine, store, folder
        with contextlib.suppress(OSError):  # write() says what cannot be written there
            (Path(folder) / f"worker-{engine.rank}.jsonl").unlink()
        engine.start_timeline()  # forgets what was read before
        engine.read_clocks(_CLOCK_SECONDS)

    def stop(self) -> None:
        """Ends the trace, while the servers are still there to tell their time."""
        self._engine.stop_timeline()
        self._engine.read_clocks(_CLOCK_SECONDS)

    def write(self) -> None:
        """Writes the part. One that cannot be written costs the job nothing but the part, which is said."""
        try:
            self._engine.write_timeline(self._folder, self._store)
        except RuntimeError as error:
            print(f"gradwire: {error}", file=sys.stderr, flush=True)
