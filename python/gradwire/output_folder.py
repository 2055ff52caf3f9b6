"""Keeps what every process of a job writes: one file each, in a folder."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TextIO

from gradwire.child import Line


class OutputFolder:
    """Appends lines to worker-0.stdout, worker-0.stderr, scheduler.stderr, ... Begins afresh what is there.

    Lines are on disk as soon as they are taken, so that a job that is killed has left its last words.
    """

    def __init__(self, folder: Path) -> None:
        """Raises: OSError: the folder cannot be made."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._files: dict[str, TextIO] = {}

    def __call__(self, line: Line) -> None:
        name = line.role if line.rank is None else f"{line.role}-{line.rank}"
        path = f"{name}.{line.stream}"
        if path not in self._files:
            self._files[path] = (self._folder / path).open("w", encoding="utf-8", buffering=1)
        self._files[path].write(f"{line.text}\n")

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()
