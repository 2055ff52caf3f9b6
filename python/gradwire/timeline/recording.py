"""What `gradwire run --timeline FILE` adds to a job: a folder for its processes' parts, and at the end one file."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from gradwire.terminal.json_option import check_folder
from gradwire.timeline.command import reservations
from gradwire.timeline.merge import merge_folder
from gradwire.timeline.recorder import OTHER_JOBS
from gradwire.timeline.trace_event import write_trace

_MARK = ".mark"
_PARTS = (".jsonl", ".unfinished", _MARK)
_ANYWHERE = Path("/tmp")  # which every host has
# Runs a command where a file is seen, and elsewhere says what is wrong.
_WHERE_SEEN = (
    '[ -e "$0" ] && exec "$@"; '
    'echo "gradwire: run: --timeline: $(uname -n) does not see ${0%/*}, where parts are gathered: expected a FILE in a '
    'folder that all machines share" >&2; exit 1'
)


class Recording:
    """The timeline of one job, while it runs.

    Attributes:
        folder: where the parts are merged, on this machine.
        there: where each process writes its part, on its own.
    """

    def __init__(self, file: Path, *, fetched: bool = False) -> None:
        """
        Args:
            file: to be written. The parts lie beside it until then, in a folder that the first of them makes.
            fetched: the processes may be on other machines, from which the launcher brings their parts.

        Raises:
            ValueError: it cannot be written there, or the folder of its parts holds something else.
            OSError: parts of a launcher that was killed cannot be removed.
        """
        if (file.exists() and not file.is_file()) or not file.absolute().parent.is_dir():
            raise ValueError(
                f"run: --timeline {file}: expected a file in an existing folder, such as out.json"
            )
        self._file = file
        self.folder = file.absolute().with_name(file.name + ".parts")
        self.there = _ANYWHERE / f"gradwire-{secrets.token_hex(8)}.parts" if fetched else self.folder
        self._remove_parts()  # of a launcher that was killed
        self._try_to_write()

    @property
    def environment(self) -> dict[str, str]:
        """What the job's processes need to know."""
        return {"GRADWIRE_TIMELINE": str(self.there)}

    def _try_to_write(self) -> None:
        """Finds out before the training whether there will be a timeline after it."""
        is_new = not self._file.exists()
        try:
            check_folder(self.folder)
            self.folder.rmdir()
            with self._file.open("a", encoding="utf-8"):
                pass
            if is_new:
                self._file.unlink()
        except OSError as error:
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            where = f": {error.filename}" if error.filename else ""
            raise ValueError(
                f"run: --timeline {self._file} cannot be written ({error.strerror}{where}): name a file in a folder "
                "with free space that you may write to"
            ) from None

    @contextlib.contextmanager
    def seen(self) -> Iterator[list[str]]:
        """Gives words before a command that have it refuse to begin on a machine which does not share the folder."""
        self.folder.mkdir(exist_ok=True)
        mark = self.folder / f"{secrets.token_hex(8)}{_MARK}"
        mark.touch()
        try:
            yield ["sh", "-c", _WHERE_SEEN, str(mark)]
        finally:
            mark.unlink(missing_ok=True)
            self._remove_empty()

    def finish(self, report: Callable[[str], None]) -> bool:
        """Merges the parts and removes them. Returns whether there is a timeline, and reports what it is or lacks.

        Where ranks have formed several jobs, each has a file.
        """
        others = []
        try:
            self._take_from_here()
            timeline = merge_folder(self.folder)
            write_trace(timeline, self._file)
            for folder in sorted(self.folder.glob(OTHER_JOBS)):
                others.append(self._file.with_stem(f"{self._file.stem}.{folder.name}"))
                write_trace(merge_folder(folder), others[-1])
        except (ValueError, OSError) as error:
            report(str(error))
            self._remove_empty()
            return False
        with contextlib.suppress(ValueError, OSError):  # what else somebody has put there stays
            self._remove_parts()
        report(
            f"the timeline is in {self._file}: open it at https://ui.perfetto.dev, or see gradwire timeline "
            f"{shlex.quote(str(self._file))}"
        )
        if others:
            report(f"those of the other jobs that its ranks have formed are in {', '.join(map(str, others))}")
        for text in reservations(timeline):
            report(text)
        return True

    def _take_from_here(self) -> None:
        """Moves what processes on this machine have left where those on others have."""
        if self.there == self.folder or not self.there.is_dir():
            return
        self.folder.mkdir(exist_ok=True)
        for path in self.there.iterdir():
            shutil.move(path, self.folder / path.name)
        self.there.rmdir()

    def _remove_empty(self) -> None:
        with contextlib.suppress(OSError):  # parts are there, or nobody has made it
            self.folder.rmdir()

    def _remove_parts(self) -> None:
        if not self.folder.exists():
            return
        if not self.folder.is_dir():
            raise ValueError(
                f"run: --timeline {self._file}: {self.folder} is in the way of its parts: expected a folder of them, "
                "or nothing; move it away or name another file"
            )
        folders = [folder for folder in self.folder.glob(OTHER_JOBS) if folder.is_dir()]
        found = [path for folder in (*folders, self.folder) for path in sorted(folder.iterdir())]
        found = [path for path in found if path not in folders]
        for path in found:
            if path.is_dir() or path.suffix not in _PARTS:
                raise ValueError(
                    f"run: --timeline {self._file}: {path} is not part of a trace, and {self.folder} is for those: "
                    "move it away or name another file"
                )
        for path in found:
            path.unlink()
        for folder in (*folders, self.folder):
            folder.rmdir()
