"""An extension of griffe: reads the docstrings of this package, whose sections may begin on the line of their title.

    Returns: a Codec, which is immutable.

becomes what griffe reads as a section; indented code becomes a fenced block, so that it is highlighted; the compiled
module's types lose what only nanobind needs to know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import griffe

_INLINE = re.compile(r"^(Returns|Raises|Yields|Source): +(\S.*)$")
_ERROR = re.compile(r"^[\w.]+(?:, [\w.]+)*: ")
_STAR = re.compile(r"(?<![\w*\"])\*\w[\w -]*\*(?!\w)|`[^`]*`|(?<=[\"'./\w])(\*)(?!\*)")
_CODE_SECTION = re.compile(r"^Examples?:$")
_SHELL = re.compile(r"^(\$ |export |gradwire |python |torchrun |mpirun )")


class Docstrings(griffe.Extension):
    """Rewrites every docstring once, before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = normalized(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called for each class, once its members are known."""
        for name, overloads in cls.overloads.items():
            if overloads and name not in cls.members:
                cls.set_member(name, _joined(name, overloads))


def _joined(name: str, overloads: Sequence[griffe.Function]) -> griffe.Function:
    """Makes one function of overloads without an implementation, as a stub has them."""
    first = overloads[0]
    texts = [each.docstring.value for each in overloads if each.docstring is not None]
    joined = griffe.Function(name, parameters=first.parameters, returns=first.returns, lineno=first.lineno)
    joined.docstring = griffe.Docstring(normalized("\n\n".join(texts)), parent=joined)
    joined.overloads = list(overloads)
    return joined


def normalized(text: str) -> str:
    """Returns a docstring with sections and code blocks as griffe's parser and Markdown have them."""
    return "\n".join(_sections(_fenced(text.splitlines())))


def _sections(lines: Sequence[str]) -> Iterator[str]:
    """Moves what stands behind a section's title to the line below; a source is a paragraph."""
    inside = False
    for line in lines:
        match = _INLINE.match(line)
        if match and (match[1] == "Source" or (match[1] == "Raises" and not _ERROR.match(match[2]))):
            yield f"**{match[1]}:** {match[2]}"  # a paragraph: no name, no list
            inside = False
        elif match:
            yield from (f"{match[1]}:", f"    {match[2]}")
            inside = True
        elif inside and line.startswith(" "):
            yield line if line.startswith("        ") else f"    {line}"
        else:
            inside = False
            yield line


def _fenced(lines: Sequence[str]) -> Iterator[str]:
    """Fences code that is indented: behind `Example:`, and behind an empty line outside of any section."""
    section = code = False
    before = ""
    for at, line in enumerate(lines):
        if _CODE_SECTION.match(line):
            yield from ("", "**Example:**", "")
            section, before = False, ""
            continue
        if line and not line.startswith(" "):
            section = re.match(r"^(Args|Attributes|Returns|Raises|Yields|Source):", line) is not None
        starts = line.startswith("    ") and (not before or before.endswith(":")) and not section
        if starts and not code:
            if before:
                yield ""
            yield "```sh" if _SHELL.match(line.strip()) else "```python"
            code = True
        if code and line and not line.startswith("    "):
            yield from ("```", "")
            code = False
        if code and not line and not _goes_on(lines[at + 1 :]):
            yield "```"
            code = False
        yield line[4:] if code else _STAR.sub(lambda star: "\\*" if star[1] else star[0], line)
        before = line
    if code:
        yield "```"


def _goes_on(rest: Sequence[str]) -> bool:
    """Whether the next line that is not empty is code."""
    following = next((line for line in rest if line), "")
    return following.startswith("    ")
