"""Tables of the codecs and their parameters, from the table in compress/codecs.cpp."""

from __future__ import annotations

from typing import Any


def _rows() -> list[dict[str, Any]]:
    from gradwire import _core

    return list(_core.codecs())


def summary() -> str:
    """Returns a table of all codecs."""
    rows = []
    for row in _rows():
        name, exact = row["name"], _yes(row["exact_reply"])
        rows.append(f"| [`{name}`](#{name}) | {_cell(row['summary'])} | {_yes(row['lossy'])} | {exact} |")
    return "\n".join(["| Codec | What it sends | Lossy | `reply=exact` |", "|---|---|---|---|", *rows])


def parameters() -> str:
    """Returns a section for each codec with its parameters."""
    return "\n\n".join(_section(row) for row in _rows())


def _section(row: dict[str, Any]) -> str:
    head = f"### `{row['name']}` {{ #{row['name']} }}\n\n{_sentence(row['summary'])}"
    if not row["parameters"]:
        return f"{head} It has no parameters."
    lines = [
        f"| `{parameter['name']}` | `{parameter['default']}` | {_cell(parameter['help'])} |"
        for parameter in row["parameters"]
    ]
    return "\n".join([f"{head}\n", "| Parameter | Default | Meaning |", "|---|---|---|", *lines])


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _yes(value: bool) -> str:
    return "yes" if value else "no"
