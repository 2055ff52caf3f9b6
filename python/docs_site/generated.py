"""Tables that a page takes from the code when the site is built: `<!-- generated: settings -->` in the page asks for
one.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from docs_site import codecs_table, command_line, metrics_table, settings_list

_MARK = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)

PARTS: dict[str, Callable[[], str]] = {
    "codec-parameters": codecs_table.parameters,
    "codecs": codecs_table.summary,
    "command-line": command_line.all_commands,
    "metrics": metrics_table.table,
    "settings": settings_list.all_settings,
}


def filled(markdown: str) -> str:
    """Returns a page with its marks replaced.

    Raises:
        KeyError: a mark names no part.
    """
    return _MARK.sub(lambda mark: PARTS[mark[1]](), markdown)
