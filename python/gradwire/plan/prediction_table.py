"""The table of predictions that `gradwire plan` prints, as wide as the terminal allows.

What all rows have in common stands in the title. On a terminal that is too narrow, words break first, and then columns
go that --json has.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from gradwire.settings.units import format_bytes, format_duration, format_rate, format_share
from gradwire.terminal.wide_table import fits

if TYPE_CHECKING:
    from rich.console import Console

    from gradwire.plan.planner import Prediction

_NARROWEST_WORDS = 7  # of "2bit:reply=2bit", "servers: 4"
_FIRST_TO_GO = ("partition", "credit", "bound", "exposed")
_ALWAYS = ("codec", "effi-\nciency", "bound", "step", "interval", "exposed", "sent", "link\nbusy")


def fitting_table(rows: Sequence[Prediction], best: Prediction | None, console: Console) -> Table:
    """Returns the table with whole words; where they do not fit, one in which codecs and placements may break; where
    that is too wide, one of fewer columns."""
    tables = (_table(rows, best), _table(rows, best, breaks=True))
    fewer = _table(rows, best, breaks=True, left_out=_FIRST_TO_GO)
    fewer.caption = f"--json also has {', '.join(_FIRST_TO_GO)}."
    return next((table for table in tables if fits(table, console)), fewer)


def _table(
    rows: Sequence[Prediction],
    best: Prediction | None,
    *,
    breaks: bool = False,
    left_out: Collection[str] = (),
) -> Table:
    """Makes a row for each prediction. Values that all have in common stand in the title."""
    cells = [{name: text for name, text in _cells(row).items() if name not in left_out} for row in rows]
    varied = [name for name in cells[0] if name in _ALWAYS or len({row[name] for row in cells}) > 1]
    common = [f"{name} {text}" for name, text in cells[0].items() if name not in varied]
    table = Table(
        box=SIMPLE_HEAD,
        title=", ".join(common),
        title_justify="left",
        title_style="dim",
        caption_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in varied:
        left = name in ("codec", "placement")
        table.add_column(
            name,
            justify="left" if left else "right",
            no_wrap=not (left and breaks),
            overflow="fold",
            min_width=_NARROWEST_WORDS if left and breaks else None,
        )
    for row, texts in zip(rows, cells, strict=True):
        table.add_row(*(texts[name] for name in varied), style="bold" if row is best else None)
    return table


def _cells(row: Prediction) -> dict[str, str]:
    credit, servers = row.schedule.credit_bytes, row.network.servers
    return {
        "codec": str(row.variant),
        "placement": f"{row.network.placement}: {servers}" if servers else row.network.placement,
        "partition": format_bytes(row.schedule.partition_bytes),
        "credit": "-" if credit is None else format_bytes(credit),
        "workers": str(row.network.workers),
        "link": format_rate(row.network.bandwidth),
        "effi-\nciency": f"{format_share(row.efficiency)}%",
        "bound": f"{format_share(row.bound)}%",
        "step": format_duration(row.step_seconds),
        "interval": _interval(row),
        "exposed": format_duration(row.exposed_seconds),
        "sent": format_bytes(row.sent_bytes),
        "link\nbusy": f"{100 * row.busiest_link:.0f}%",
    }


def _interval(row: Prediction) -> str:
    """Writes "110-150", both ends in the unit of the step beside it."""
    if row.step_interval is None:
        return "-"
    scale = (
        float(format_duration(row.step_seconds).split()[0]) / row.step_seconds if row.step_seconds else 1.0
    )
    low, high = (f"{float(f'{scale * end:.3g}'):g}" for end in row.step_interval)  # 1040, not 1.04e+03
    return f"{low}-{high}"
