"""The page of `gradwire bench codec --report`: every codec beside memcpy, and the whole record."""

from __future__ import annotations

import html
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire.bench.codec import Plan
from gradwire.bench.tables import CODEC_TITLES, codec_row
from gradwire.report.chart import Bar, Panel, panel_chart, standalone
from gradwire.report.page import document, facts_list, record_section, table, write_document
from gradwire.terminal.machine import gradwire_version, machine_description

Records = Sequence[Mapping[str, Any]]

_PANELS = {
    "encode with residual": ("encode", "fp32", 1),
    "encode": ("encode", "none", 1),
    "decode": ("decode", "none", 1),
    "decode and sum of 8": ("decode_sum", "none", 8),
}


def write_page(folder: Path, records: Records, facts: Mapping[str, str]) -> Path:
    """Writes folder/index.html, whose path it returns, and the charts alone as folder/codec.svg.

    Args:
        facts: how it was measured, by name.
    """
    path = write_document(folder, _page(records, facts))
    (folder / "codec.svg").write_text(standalone(chart(records)), encoding="utf-8")
    return path


def facts_of(plan: Plan) -> dict[str, str]:
    """Says how the records of this command's run were measured."""
    piece = f"pieces of {plan.piece_elements}" if plan.piece_elements else "one piece a thread"
    return {
        "command": shlex.join(["gradwire", *sys.argv[1:]]),
        "machine": ", ".join(f"{name} {value}" for name, value in machine_description().items()),
        "gradient": f"{plan.elements} floats in {piece}, {plan.threads} thread{'s' if plan.threads > 1 else ''}",
        "turns": f"medians of {plan.repeat}, memcpy and operation one after the other, after one to warm up",
        "ended": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "gradwire": gradwire_version(),
    }


def chart(records: Records) -> str:
    """Draws a panel per operation, a bar per codec: its rate over memcpy's, and a tick where memory's limit is."""
    panels = [Panel(f"{title}, of memcpy", _bars(records, key)) for title, key in _PANELS.items()]
    return panel_chart([panel for panel in panels if panel.bars], lambda value: f"{value:.2f}")


def _bars(records: Records, key: tuple[str, str, int]) -> tuple[Bar, ...]:
    return tuple(
        Bar(
            row["codec"],
            row["ratio_to_memcpy"],
            limit=row["memory_limit_ratio"],
            note=f"{row['elements_per_second'] / 1e9:.2f} G elements/s",
        )
        for row in records
        if (row["op"], row["residual"], row["ways"]) == key
    )


def _page(records: Records, facts: Mapping[str, str]) -> str:
    codecs = list(dict.fromkeys(row["codec"] for row in records))
    title = f"Speed of {codecs[0]}" if len(codecs) == 1 else f"Speed of {len(codecs)} codecs"
    sections = [
        f"<h1>{html.escape(title)}</h1>",
        '<p class="sub">gradwire bench codec; rate over that of memcpy of the same floats in the same run. Tick: '
        "what memory allows, the bytes that memcpy moves over those that the operation must move</p>",
        f'<div class="grid"><figure>{chart(records)}</figure></div>',
        "<h2>Every operation</h2>",
        table(["codec", *CODEC_TITLES, "bits", "relative error"], [_table_row(row) for row in records]),
        "<h2>How this was measured</h2>",
        facts_list(facts),
        record_section(records),
    ]
    return document(f"{title} - gradwire bench codec", sections)


def _table_row(row: Mapping[str, Any]) -> list[str]:
    return [row["codec"], *codec_row(row), f"{row['bits_per_element']:.2f}", f"{row['relative_error']:.2g}"]
