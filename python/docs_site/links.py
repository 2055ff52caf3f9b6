"""Links of a Markdown text, and the anchors that others may link to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^ *(`{3,}|~{3,})")
_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_INLINE = re.compile(r"\]\(<?([^()\s<>]+)>?(?: +\"[^\"\n]*\")?\)")
_DEFINED = re.compile(r"^ {0,3}\[[^\]\n]+\]: +(\S+)", re.MULTILINE)
_ATTRIBUTE = re.compile(r"<(?:a|img)\b[^>]*?(?:href|src)=\"([^\"]+)\"")
_HEADING = re.compile(r"^ {0,3}#{1,6} +(.+?)(?: +#+)?$", re.MULTILINE)
_ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\"|\{ *#([\w.-]+)[^}\n]*\}")


@dataclass(frozen=True)
class Link:
    """A link's target, and where in the text it stands."""

    target: str
    start: int
    line: int

    @property
    def is_external(self) -> bool:
        return re.match(r"^[a-z][a-z0-9+.-]*:|^//", self.target) is not None


def without_code(text: str, *, spans: bool = True) -> str:
    """Returns the text with its code and comments blanked out, at its old length.

    Args:
        spans: code between backticks within a line, too.
    """
    text = _COMMENT.sub(lambda match: _blank(match.group()), text)
    lines, fence = [], ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if fence:
            closes = match is not None and match[1].startswith(fence) and not line.strip().strip(fence[0])
            fence = "" if closes else fence
            lines.append(_blank(line))
        elif match:
            fence = match[1]
            lines.append(_blank(line))
        else:
            lines.append(line)
    text = "\n".join(lines)
    return _SPAN.sub(lambda match: _blank(match.group()), text) if spans else text


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def links(text: str) -> Iterator[Link]:
    """Yields all links and images of a Markdown text, in order."""
    plain = without_code(text)
    found = [match for kind in (_INLINE, _DEFINED, _ATTRIBUTE) for match in kind.finditer(plain)]
    for match in sorted(found, key=lambda match: match.start(1)):
        yield Link(match[1], match.start(1), plain.count("\n", 0, match.start(1)) + 1)


def rewritten(text: str, new_target: Callable[[str], str]) -> str:
    """Returns the text with other targets of its links."""
    for link in reversed(list(links(text))):
        text = text[: link.start] + new_target(link.target) + text[link.start + len(link.target) :]
    return text


def slug(heading: str) -> str:
    """Returns a heading's anchor, as GitHub and the site make it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    plain = re.sub(r"\{ *[#.:][^}]*\}$", "", plain).strip()
    plain = re.sub(r"(?<!\w)([*_]{1,3})(\S.*?)\1(?!\w)", r"\2", plain).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Returns all anchors of a Markdown text."""
    plain = without_code(text, spans=False)
    explicit = {name for match in _ANCHOR.finditer(plain) for name in match.groups() if name}
    return explicit | {slug(match[1]) for match in _HEADING.finditer(plain)}
