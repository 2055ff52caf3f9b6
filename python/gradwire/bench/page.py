"""The page of `gradwire bench allreduce --report`: bars beside the wire's limit, and the whole record."""

from __future__ import annotations

import html
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire.bench.plan import RoundPlan
from gradwire.bench.tables import (
    ALL_REDUCE_TITLES,
    all_reduce_row,
    all_reduce_title,
    speed_rows,
    speed_titles,
)
from gradwire.report.chart import Bar, Panel, panel_chart
from gradwire.report.page import document, facts_list, record_section, table, write_document
from gradwire.settings.units import format_bytes, format_duration
from gradwire.terminal.machine import gradwire_version, machine_description

_OURS, _PEER = 0, 1  # colours
Records = Sequence[Mapping[str, Any]]


def write_page(folder: Path, records: Records, facts: Mapping[str, str]) -> Path:
    """Writes folder/index.html and returns its path. facts: how it was measured, by name."""
    return write_document(folder, _page(records, facts))


def facts_of(plan: RoundPlan) -> dict[str, str]:
    """Says how the records of this command's run were measured."""
    return {
        "command": shlex.join(["gradwire", *sys.argv[1:]]),
        "machine": ", ".join(f"{name} {value}" for name, value in machine_description().items()),
        "rounds": f"{plan.repeat} timed of each system, in {plan.launch_count} launches that took turns",
        "ended": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "gradwire": gradwire_version(),
    }


def time_panel(records: Records, title: str) -> Panel:
    """One bar per system: the median, a line from the fastest to the slowest round, a tick at the wire's limit."""
    bars = []
    for row in records:
        limit = row["wire_limit_seconds"]
        bars.append(
            Bar(
                row["label"],
                row["seconds_median"],
                (row["seconds_min"], max(row["seconds"])),
                limit,
                "" if limit is None else f"{row['seconds_median'] / limit:.2f} x limit",
                _colour(row),
            )
        )
    return Panel(title, tuple(bars))


def _page(records: Records, facts: Mapping[str, str]) -> str:
    title = all_reduce_title(records)
    cpu = [Bar(row["label"], row["cpu_seconds_per_gb"], colour=_colour(row)) for row in records]
    sent = [
        Bar(row["label"], row["bytes_sent_per_rank"], None, row["payload_bytes_per_rank"], "", _colour(row))
        for row in records
    ]
    charts = [
        panel_chart([time_panel(records, "Seconds of a round; tick: what the wire needs")], format_duration),
        panel_chart([Panel("CPU seconds per GB of gradient", tuple(cpu))], lambda value: f"{value:.2f} s"),
        panel_chart(
            [Panel("Bytes that a rank sent; tick: the payloads' formula", tuple(sent))], format_bytes
        ),
    ]
    figures = "".join(f"<figure>{chart}</figure>" for chart in charts)
    sections = [
        f"<h1>{html.escape(title)}</h1>",
        '<p class="sub">gradwire bench allreduce; median, and a line from the fastest to the slowest round</p>',
        f'<div class="grid">{figures}</div>',
        "<h2>Every system</h2>",
        table(ALL_REDUCE_TITLES, [all_reduce_row(row) for row in records]),
        table(speed_titles(records), speed_rows(records)) if speed_titles(records) else "",
        "<h2>How this was measured</h2>",
        facts_list(facts),
        record_section(records),
    ]
    return document(f"{title} - gradwire bench allreduce", sections)


def _colour(row: Mapping[str, Any]) -> int:
    return _OURS if row["system"] == "gradwire" else _PEER
