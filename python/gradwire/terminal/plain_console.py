"""The consoles on which commands show results.

What commands print contains text of users: file names, keys, settings. So "[b]" is no markup here, and ":100:" no
emoji. A style is given as style= or as a rich.text.Text.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from rich.console import Console


def plain_console(json_file: str | None = None) -> Console:
    """Returns a console on stdout, or on stderr where `--json -` has stdout. Write files before you print on it: it
    ends the command where its reader has gone, as of `gradwire timeline out.json | head`."""
    return Console(stderr=json_file == "-", markup=False, emoji=False)


def lasting_console(json_file: str | None = None) -> Console:
    """Returns such a console for work of hours whose results go to a file. Where it cannot be written to any more, it
    shows nothing further, and the work goes on."""
    return _LastingConsole(stderr=json_file == "-", markup=False, emoji=False)


class _LastingConsole(Console):
    def __exit__(self, *raised: Any) -> None:
        """Writes what print() or a live display has made: both do it in a block of their console."""
        try:
            super().__exit__(*raised)
        except OSError as error:
            note = f"the output cannot be written ({error.strerror}): the work goes on, and shows nothing further"
            with contextlib.suppress(OSError):  # stderr goes to the same place
                print(f"gradwire: {note}", file=sys.stderr, flush=True)
            self._show_nothing_further()

    def on_broken_pipe(self) -> None:
        """Is called by rich, which ends the process by default."""
        self._show_nothing_further()

    def _show_nothing_further(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())  # what is left in its buffer would fail again at exit
        os.close(nowhere)
