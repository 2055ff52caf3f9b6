"""The console on which commands show results."""

from __future__ import annotations

from rich.console import Console


def plain_console(json_file: str | None = None) -> Console:
    """Returns a console on stdout, or on stderr where `--json -` has stdout.

    What commands print contains text of users: file names, keys, settings. So "[b]" is no markup here, and ":100:" no
    emoji. A style is given as style= or as a rich.text.Text.
    """
    return Console(stderr=json_file == "-", markup=False, emoji=False)
