"""What `gradwire run --timeline FILE` adds to a job: a folder for its processes' parts, and at the end one file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from gradwire.timeline.command import reservations
from gradwire.timeline.merge import merge_folder
from gradwire.timeline.trace_event import write_trace


class Recording:
    """The timeline of one job, while it runs.

    Attributes:
        environment: what the job's processes need to know.
    """

    def __init__(self, file: Path) -> None:
        """
        Args:
            file: to be written. The parts lie beside it until then.

        Raises:
            ValueError: it cannot be written there.
            OSError: there is no room beside it.
        """
        if file.is_dir() or not file.absolute().parent.is_dir():
            raise ValueError(
                f"run: --timeline {file}: expected a file in a folder that is there, such as out.json"
            )
        self._file = file
        self._parts = file.absolute().with_name(file.name + ".parts")
        shutil.rmtree(self._parts, ignore_errors=True)  # of a launcher that was killed
        self._parts.mkdir()
        self.environment = {"GRADWIRE_TIMELINE": str(self._parts)}

    def finish(self, report: Callable[[str], None]) -> bool:
        """Merges the parts and removes them. Returns whether there is a timeline, and reports what it is or lacks."""
        try:
            timeline = merge_folder(self._parts)
            write_trace(timeline, self._file)
        except (ValueError, OSError) as error:
            report(str(error))
            return False
        shutil.rmtree(self._parts, ignore_errors=True)
        report(
            f"the timeline is in {self._file}: open it at https://ui.perfetto.dev, or see gradwire timeline "
            f"{self._file}"
        )
        for text in reservations(timeline):
            report(text)
        return True
