"""What `gradwire run --timeline FILE` adds to a job: a folder for its processes' parts, and at the end one file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from gradwire.timeline.command import reservations
from gradwire.timeline.merge import merge_folder
from gradwire.timeline.trace_event import write_trace

_PARTS = (".jsonl", ".unfinished")


class Recording:
    """The timeline of one job, while it runs.

    Attributes:
        environment: what the job's processes need to know.
    """

    def __init__(self, file: Path) -> None:
        """
        Args:
            file: to be written. The parts lie beside it until then, in a folder that the first of them makes.

        Raises:
            ValueError: it cannot be written there, or the folder of its parts holds something else.
            OSError: parts of a launcher that was killed cannot be removed.
        """
        if file.is_dir() or not file.absolute().parent.is_dir():
            raise ValueError(
                f"run: --timeline {file}: expected a file in a folder that is there, such as out.json"
            )
        self._file = file
        self._parts = file.absolute().with_name(file.name + ".parts")
        self._remove_parts()  # of a launcher that was killed
        self.environment = {"GRADWIRE_TIMELINE": str(self._parts)}

    def finish(self, report: Callable[[str], None]) -> bool:
        """Merges the parts and removes them. Returns whether there is a timeline, and reports what it is or lacks."""
        try:
            timeline = merge_folder(self._parts)
            write_trace(timeline, self._file)
        except (ValueError, OSError) as error:
            report(str(error))
            return False
        with contextlib.suppress(ValueError, OSError):  # what else somebody has put there stays
            self._remove_parts()
        report(
            f"the timeline is in {self._file}: open it at https://ui.perfetto.dev, or see gradwire timeline "
            f"{self._file}"
        )
        for text in reservations(timeline):
            report(text)
        return True

    def _remove_parts(self) -> None:
        if not self._parts.exists():
            return
        if not self._parts.is_dir():
            raise ValueError(
                f"run: --timeline {self._file}: {self._parts} is in the way of its parts: expected a folder of them, "
                "or nothing; move it away or name another file"
            )
        found = sorted(self._parts.iterdir())
        for path in found:
            if path.is_dir() or path.suffix not in _PARTS:
                raise ValueError(
                    f"run: --timeline {self._file}: {path} is no part of a timeline, and {self._parts} is for those: "
                    "move it away or name another file"
                )
        for path in found:
            path.unlink()
        self._parts.rmdir()
