"""What each process of a job writes: one file each, in a folder."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TextIO

from gradwire.launch.child import Line
from gradwire.terminal.json_option import check_folder

_NAME = re.compile(r"((worker|server)(-\d+)?|scheduler)\.std(out|err)")


class OutputFolder:
    """Appends lines to worker-0.stdout, worker-0.stderr, scheduler.stderr, ... Removes those of an earlier job first.

    Lines are on disk as soon as they are taken, so that a job that is killed has left its last words. A file that
    cannot be written while the job runs (a full disk) is reported once, and the job goes on without it.
    """

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        """report: takes what is to be said of files that cannot be written.

        Raises: OSError: the folder cannot be made, or nothing can be written there.
        """
        try:
            check_folder(folder)
            _remove_earlier(folder)
        except OSError as error:
            raise OSError(
                f"run: --output-dir {folder} cannot be written ({error.strerror}): name another"
            ) from None
        self._folder = folder
        self._report = report
        self._files: dict[str, TextIO | None] = {}  # None: it is given up

    def __call__(self, line: Line) -> None:
        name = line.role if line.rank is None else f"{line.role}-{line.rank}"
        path = self._folder / f"{name}.{line.stream}"
        try:
            if path.name not in self._files:
                self._files[path.name] = path.open("w", encoding="utf-8", buffering=1)
            if (file := self._files[path.name]) is not None:
                file.write(f"{line.text}\n")
        except OSError as error:
            self._give_up(path, error)

    def _give_up(self, path: Path, error: OSError) -> None:
        self._close(self._files.get(path.name))
        self._files[path.name] = None
        self._report(
            f"{path} cannot be written ({error.strerror}): the job goes on, and further lines are not written there"
        )

    @staticmethod
    def _close(file: TextIO | None) -> None:
        if file is not None:
            with contextlib.suppress(OSError):  # what could not be written is tried again
                file.close()

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            self._close(file)


def _remove_earlier(folder: Path) -> None:
    """Removes what an earlier job has left: a process that writes nothing, or is not there this time, has no file. What
    no job has made (a link) stays, and is written to."""
    for path in folder.iterdir():
        if _NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            path.unlink()
