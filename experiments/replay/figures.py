"""What run.py makes of its records: tables, results.csv and a picture.

Rows of the table are those with nothing changed; runs with another scale, profile, order or limit are controls, and
stand apart.

Threading: pure functions, but for write().
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire.report.chart import Bar, Panel, panel_chart, standalone

from replay import rows, verdict

Record = Mapping[str, Any]
Records = Sequence[Record]
COLUMNS = (
    *("row", "system", "codec", "placement", "workers", "servers", "bandwidth", "model", "scale"),
    *("partition_bytes", "credit_bytes", "in_order", "changes"),
    *("overlap_step", "efficiency", "bound", "published_efficiency", "overhead"),
    *("step_seconds", "compute_seconds", "bound_seconds", "codec_seconds", "steps"),
    *("cpu_share", "busiest_core", "busiest_process", "refused"),
    *("round_seconds", "round_bound_seconds", "published_round_seconds", "round_cpu_share"),
    *("sent_bytes", "expected_bytes", "link_bytes"),
)
_COLOURS = {"gradwire": 0, "mxnet": 1, "openmpi": 2, "gloo": 3}
_TITLES = (
    "cluster",
    "system, codec",
    "steps",
    "measured",
    "predicted",
    "error",
    "bound",
    "published",
    "step, s",
)
_LAST_TITLES = ("codec, s", "CPU", "busiest core")


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def line(record: Record) -> str:
    """Says what one record found, for a person who waits."""
    name = f"{record['row']}, {_mode(record)}"
    if record["refused"]:
        return f"{name}: no figure: {record['refused']}"
    published = record["published_efficiency"]
    beside = f", published {percent(published)}" if published is not None else ""
    words = f"{name}: {percent(record['efficiency'])} of one node, bound {percent(record['bound'])}{beside}"
    words += f"; step {record['step_seconds']:.3f} s"
    if record["overhead"] is not None:
        words += f"; the replay itself {100 * record['overhead']:.2f} %"
    if record["round_seconds"] is not None:
        words += f"; 400 MB in {record['round_seconds']:.3f} s"
    return f"{words}; CPU {percent(record['cpu_share'])}, busiest core {percent(record['busiest_core'])}"


def write(folder: Path, records: Records) -> None:
    """Writes results.csv, and results.svg of what is no control."""
    with open(folder / "results.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        cells = ({**record, "changes": "; ".join(record["changes"])} for record in records)
        table.writerows([record[name] for name in COLUMNS] for record in cells)
    drawn = panel_chart(_panels([record for record in records if not record["changes"]]), percent)
    (folder / "results.svg").write_text(standalone(drawn), encoding="utf-8")


def _panels(records: Records) -> list[Panel]:
    """One for each cluster, rate and model: bars of efficiency, a tick at the bound."""
    panels = []
    for title, of_title in _grouped(records).items():
        bars = [
            Bar(
                f"{record['system']} {record['codec']}, {_mode(record)}",
                record["efficiency"],
                None,
                record["bound"],
                "",
                _COLOURS[record["system"]],
            )
            for record in of_title
        ]
        published = of_title[0]["published_efficiency"]
        tail = f" (published: {percent(published)})" if published is not None else ""
        panels.append(Panel(f"{title}{tail}", tuple(bars)))
    return panels


def _grouped(records: Records) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        cluster = rows.parse(record["row"]).cluster
        groups.setdefault(f"{record['model']}, {record['bandwidth']}, {cluster}", []).append(record)
    return groups


def _mode(record: Record) -> str:
    """Says how steps were taken, and what was not as it is by default."""
    return ", ".join(["overlap" if record["overlap_step"] else "drain", *record["changes"]])


def markdown(records: Records, predictions: verdict.Predictions) -> str:
    """Returns the tables of README.md: rows, claims, rounds, and controls if there are any."""
    plain = [record for record in records if not record["changes"]]
    controls = [record for record in records if record["changes"]]
    parts = [
        *_efficiencies(plain, predictions),
        "",
        verdict.markdown(plain, predictions),
        "",
        *_rounds(plain),
    ]
    if controls:
        parts += ["", "Controls:", "", *_efficiencies(controls, {}), "", *_rounds(controls)]
    return "\n".join(parts)


def predicted(predictions: Sequence[Record]) -> str:
    """Returns the table of what is expected of each row, and below it of which schedule."""
    cells = (
        [
            row["row"],
            "overlap" if row["overlap_step"] else "drain",
            percent(row["efficiency"]),
            percent(row["bound"]),
        ]
        for row in predictions
    )
    schedules = {rows.parse(row["row"]).system: row["schedule"] for row in predictions}
    said = [f"{system}: {schedule}." for system, schedule in schedules.items()]
    return "\n".join([*_table(["row", "steps", "predicted", "bound"], cells), "", *said])


def _efficiencies(records: Records, predictions: verdict.Predictions) -> list[str]:
    titles = [*_TITLES, *_LAST_TITLES]
    return _table(
        titles,
        (
            _efficiency_cells(title, record, predictions)
            for title, of in _grouped(records).items()
            for record in of
        ),
    )


def _efficiency_cells(title: str, record: Record, predictions: verdict.Predictions) -> list[str]:
    off = verdict.error(record, predictions)
    return [
        title,
        f"{record['system']} {record['codec']}",
        _mode(record),
        "refused" if record["refused"] else f"**{percent(record['efficiency'])}**",
        percent(predictions.get((record["row"], record["overlap_step"]))),
        "-" if off is None else f"{100 * off:+.1f} %",
        percent(record["bound"]),
        percent(record["published_efficiency"]),
        seconds(record["step_seconds"]),
        seconds(record["codec_seconds"]),
        percent(record["cpu_share"]),
        percent(record["busiest_core"]),
    ]


def _rounds(records: Records) -> list[str]:
    """The rounds of each row, which its modes have in common."""
    by_run = {
        (record["row"], tuple(record["changes"])): record for record in records if record["round_all_seconds"]
    }
    cells = (
        [
            ", ".join([row, *changes]),
            seconds(record["round_seconds"]),
            seconds(record["round_bound_seconds"]),
            seconds(record["published_round_seconds"]),
            percent(record["round_cpu_share"]),
        ]
        for (row, changes), record in by_run.items()
    )
    return _table(["400 MB", "seconds", "wire's limit", "published", "CPU"], cells)


def _table(titles: Sequence[str], cells: Iterable[Sequence[str]]) -> list[str]:
    return [_row(titles), "|---" * len(titles) + "|", *map(_row, cells)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
