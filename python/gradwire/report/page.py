"""What all pages that gradwire writes have in common: self-contained HTML, no script, font or file from elsewhere."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f7fa; color: #1f2933; font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; } h2 { font-size: 17px; margin: 36px 0 12px; }
.sub { color: #616e7c; margin: 0 0 20px; }
.verdict { background: #fff; border-left: 4px solid #0072b2; padding: 14px 18px;
  font-size: 17px; margin: 0 0 16px; }
.warning { background: #fff8e6; border-left: 4px solid #e69f00; padding: 12px 18px; margin: 0 0 16px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 0 0 12px; padding: 0; list-style: none; }
.legend svg { width: 14px; height: 14px; vertical-align: -2px; margin-right: 6px; }
.grid { display: grid; gap: 16px; }
.curves { grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); }
.bars { grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); margin-top: 16px; }
figure { margin: 0; background: #fff; border: 1px solid #e4e7eb; border-radius: 6px; padding: 14px; }
figure svg { width: 100%; height: auto; display: block; font-family: inherit; }
figcaption { font-weight: 600; margin: 0 0 8px; } figcaption small { color: #616e7c; font-weight: 400; }
.scroll { overflow-x: auto; background: #fff; border: 1px solid #e4e7eb; border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 14px; text-align: right; white-space: nowrap; border-bottom: 1px solid #e4e7eb; }
th { color: #616e7c; font-weight: 600; } tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 0; }
dt { color: #616e7c; } dd { margin: 0; overflow-wrap: anywhere; }
code { font: 13px ui-monospace, monospace; background: #e9edf2; padding: 1px 5px; border-radius: 3px; }
details { margin-top: 24px; } summary { cursor: pointer; color: #616e7c; }
pre { overflow: auto; max-height: 420px; background: #fff; border: 1px solid #e4e7eb; padding: 12px;
  font-size: 12px; }
"""


def document(title: str, sections: Sequence[str]) -> str:
    """Returns a whole page of sections, which are HTML; empty ones are left out."""
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "\n".join(section for section in sections if section)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>{head}{view}<style>{_STYLE}</style></head>\n'
        f"<body><main>\n{body}\n</main></body>\n</html>\n"
    )


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table of texts."""
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def facts_list(facts: Mapping[str, str]) -> str:
    """Returns facts by name: command, machine and so on."""
    rows = []
    for name, text in facts.items():
        value = f"<code>{html.escape(text)}</code>" if name == "command" else html.escape(text)
        rows.append(f"<dt>{html.escape(name)}</dt><dd>{value}</dd>")
    return f"<dl>{''.join(rows)}</dl>"


def record_section(record: Any) -> str:
    """Returns the record as JSON, folded."""
    text = html.escape(json.dumps(record, indent=2))
    return f"<details><summary>The record as JSON</summary><pre>\n{text}\n</pre></details>"


def write_document(folder: Path, text: str) -> Path:
    """Writes folder/index.html, whose path it returns.

    Raises: OSError: it cannot be written; names the file.
    """
    path = folder / "index.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OSError(f"--report: {path} cannot be written ({error.strerror})") from error
    return path
