"""What all pages that gradwire writes have in common. A page is one HTML file that loads nothing: no script, no font.

It reads on a wide screen, on a phone, where tables turn into cards, and on paper.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire.terminal.whole_file import write_whole

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f7fa; color: #1f2933;
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; line-height: 1.3; margin: 0 0 4px; text-wrap: balance; }
h2 { font-size: 18px; margin: 36px 0 12px; }
.kicker { color: #616e7c; font-size: 13px; letter-spacing: .02em; margin: 0 0 8px; }
.sub { color: #616e7c; margin: 0 0 20px; }
.verdict { background: #fff; border-left: 4px solid #0072b2; padding: 14px 18px;
  font-size: 16px; margin: 16px 0; } .verdict p { margin: 0 0 8px; } .verdict p:last-child { margin: 0; }
.verdict .advice { font-weight: 600; font-size: 17px; } .verdict .basis { color: #616e7c; font-size: 13px; }
.warning { background: #fff8e6; border-left: 4px solid #e69f00; padding: 12px 18px; margin: 12px 0 16px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 20px 0 12px; padding: 0; list-style: none;
  font-weight: 600; }
.legend svg { width: 14px; height: 14px; vertical-align: -2px; margin-right: 6px; }
.grid { display: grid; gap: 16px; }
.curves { grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); }
.curves > * { min-width: 0; }
figure { margin: 0; background: #fff; border: 1px solid #e4e7eb; border-radius: 6px; padding: 14px; }
figure svg { width: 100%; height: auto; display: block; font-family: inherit; }
figcaption { font-weight: 600; margin: 0 0 8px; } figcaption small { color: #616e7c; font-weight: 400; }
.scroll { overflow-x: auto; background: #fff; border: 1px solid #e4e7eb; border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 14px; text-align: right; white-space: nowrap; border-bottom: 1px solid #e4e7eb; }
th { color: #616e7c; font-weight: 600; } tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; font-weight: 600; }
td small { display: block; color: #616e7c; font-size: 12px; }
.fitted th, .fitted td { padding: 8px; vertical-align: top; }
.fitted th { white-space: normal; vertical-align: bottom; }
.fitted td:first-child { white-space: normal; overflow-wrap: break-word; min-width: 10.5em; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 4px 20px; margin: 0; }
dt { color: #616e7c; } dd { margin: 0; overflow-wrap: anywhere; }
code { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; background: #e9edf2;
  padding: 1px 5px; border-radius: 3px; }
details { margin-top: 24px; } summary { cursor: pointer; color: #616e7c; }
pre { overflow: auto; max-height: 420px; background: #fff; border: 1px solid #e4e7eb; padding: 12px;
  font-size: 12px; }
@media (max-width: 640px) {
  main { padding: 20px 14px 40px; } h1 { font-size: 21px; }
  figure { padding: 10px 8px; } figure svg { font-size: 17px; } .y-title { display: none; }
  .fitted, .fitted tbody, .fitted tr, .fitted td { display: block; width: 100%; }
  .fitted tr:first-child { display: none; }
  .fitted tr { padding: 10px 14px; border-bottom: 1px solid #e4e7eb; } .fitted tr:last-child { border-bottom: 0; }
  .fitted td { border: 0; padding: 3px 0; display: flex; justify-content: space-between; gap: 16px; }
  .fitted td::before { content: attr(data-title); color: #616e7c; text-align: left; }
  .fitted td:first-child { font-size: 16px; } .fitted td:first-child::before { content: none; }
  .fitted td.empty { display: none; } .fitted td span { text-align: right; white-space: normal; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 8px; }
}
@media print {
  @page { margin: 14mm; }
  body { background: #fff; font-size: 10pt; } main { max-width: none; padding: 0; }
  h1 { font-size: 17pt; } h2 { font-size: 12pt; margin: 16pt 0 6pt; break-after: avoid; }
  .curves { grid-template-columns: 1fr 1fr; gap: 8pt; }
  figure { padding: 6pt; } figure svg { font-size: 15px; } .y-title { display: none; }
  figure, .verdict, .warning, tr, dl > * { break-inside: avoid; }
  .scroll { overflow: visible; break-inside: avoid; border: 0; }
  th, td { padding: 3pt 5pt; font-size: 8.5pt; white-space: normal; }
  .fitted th, .fitted td { padding: 3pt 4pt; font-size: 8pt; } .fitted td:not(:first-child) { white-space: nowrap; }
  td small { font-size: 7pt; } .fitted td:first-child { min-width: 0; }
  .verdict, .verdict .advice { font-size: 10.5pt; } code { font-size: 8.5pt; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  details { display: none; } pre { max-height: none; overflow: visible; white-space: pre-wrap; }
}
"""


def document(title: str, sections: Sequence[str]) -> str:
    """Returns a whole page made of sections, which are HTML. Empty ones are left out."""
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "\n".join(section for section in sections if section)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>{head}{view}<style>{_STYLE}</style></head>\n'
        f"<body><main>\n{body}\n</main></body>\n</html>\n"
    )


def prose(text: str) -> str:
    """Returns a text as HTML in which no line breaks between a number and its unit."""
    return re.sub(
        r"(?<=\d) (?=(?:%|ms|s|min|h|times|points|seeds?|[kMG]bit/s)\b|%)", "&nbsp;", html.escape(text)
    )


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, fitted: bool = False) -> str:
    """Returns a table of texts.

    Args:
        rows: cells. What follows a line end in a cell stands small below its first line.
        fitted: fit the width of the page instead of scrolling. On a phone each row becomes a card, in which empty cells
            ("-") are left out.
    """
    head = "".join(f"<th>{prose(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(_cell(title, cell) for title, cell in zip(titles, row, strict=True)) + "</tr>"
        for row in rows
    )
    kind = ' class="fitted"' if fitted else ""
    return f'<div class="scroll"><table{kind}><tr>{head}</tr>{body}</table></div>'


def _cell(title: str, text: str) -> str:
    first, _, rest = text.partition("\n")
    small = f"<small>{html.escape(rest)}</small>" if rest else ""
    empty = ' class="empty"' if text == "-" else ""
    return f'<td data-title="{html.escape(title)}"{empty}><span>{_breakable(first)}{small}</span></td>'


def _breakable(text: str) -> str:
    """Lets a long name, such as a codec's, break behind its colons and commas."""
    return re.sub(r"([:,])(?=\S)", r"\1<wbr>", html.escape(text))


def facts_list(facts: Mapping[str, str]) -> str:
    """Returns a list of facts by name: command, machine and so on."""
    rows = []
    for name, text in facts.items():
        value = f"<code>{html.escape(text)}</code>" if name == "command" else html.escape(text)
        rows.append(f"<dt>{html.escape(name)}</dt><dd>{value}</dd>")
    return f"<dl>{''.join(rows)}</dl>"


def record_section(record: Any) -> str:
    """Returns the record as JSON, collapsed."""
    text = html.escape(json.dumps(record, indent=2))
    return f"<details><summary>The record as JSON</summary><pre>\n{text}\n</pre></details>"


def write_document(folder: Path, text: str) -> Path:
    """Writes folder/index.html and returns its path.

    Raises: OSError: the file cannot be written; the text names it.
    """
    path = folder / "index.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise OSError(f"--report: {path} cannot be written ({error.strerror})") from error
    return path
