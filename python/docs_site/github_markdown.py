"""What GitHub's Markdown has and Python-Markdown has not: lists right below a paragraph, lists inside lists by two
spaces, and alerts.
"""

from __future__ import annotations

import re

from docs_site.links import without_code

_ITEM = re.compile(r"^( *)(?:[-*+]|\d+[.)]) +\S")
_ALERT = re.compile(r"^> \[!(NOTE|TIP|IMPORTANT|WARNING|CAUTION)\]\n((?:>.*\n?)+)", re.MULTILINE)
_ALERT_KINDS = {
    "NOTE": "note",
    "TIP": "tip",
    "IMPORTANT": "info",
    "WARNING": "warning",
    "CAUTION": "danger",
}


def adapted(text: str) -> str:
    """Returns a text of GitHub's Markdown as Python-Markdown reads it alike."""
    return _with_lists(_ALERT.sub(_admonition, text))


def _admonition(alert: re.Match[str]) -> str:
    lines = [line.removeprefix(">").removeprefix(" ") for line in alert[2].splitlines()]
    body = "\n".join(f"    {line}" if line else "" for line in lines)
    return f"!!! {_ALERT_KINDS[alert[1]]}\n{body}\n"


def _with_lists(text: str) -> str:
    """Puts an empty line between a paragraph and a list, and indents lists inside lists by four."""
    lines, plain = text.split("\n"), without_code(text, spans=False).split("\n")
    done: list[str] = []
    in_list = False
    for at, (line, bare) in enumerate(zip(lines, plain, strict=True)):
        item = _ITEM.match(bare)
        if item and len(item[1]) % 4 and in_list:
            line = " " * (4 * (len(item[1]) // 2)) + line.lstrip() if len(item[1]) % 2 == 0 else f" {line}"
        if item and not item[1] and not in_list and at and lines[at - 1].strip():
            done.append("")
        in_list = bool(item) or (in_list and (not line.strip() or line.startswith(" ")))
        done.append(line)
    return "\n".join(done)
