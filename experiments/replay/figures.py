"""What run.py makes of its records: tables, results.csv and a picture.

Threading: pure functions, but for write().
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire.chart import Bar, Panel, panel_chart, standalone
from gradwire.units import format_bytes

from replay import rows
from replay.scale import Scale

Records = Sequence[Mapping[str, Any]]
COLUMNS = (
    *("row", "system", "codec", "placement", "workers", "servers", "bandwidth", "model", "scale"),
    *("partition_bytes", "credit_bytes", "in_order"),
    *("overlap_step", "efficiency", "bound", "published_efficiency", "overhead"),
    *("step_seconds", "compute_seconds", "bound_seconds", "codec_seconds", "steps", "cpu_share", "refused"),
    *("round_seconds", "round_bound_seconds", "published_round_seconds", "round_cpu_share"),
    *("sent_bytes", "expected_bytes", "link_bytes"),
)
_COLOURS = {"gradwire": 0, "mxnet": 1, "openmpi": 2, "gloo": 3}


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def line(record: Mapping[str, Any]) -> str:
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
    return f"{words}; CPU {percent(record['cpu_share'])}"


def write(folder: Path, records: Records) -> None:
    """Writes results.csv and results.svg."""
    with open(folder / "results.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows([record[name] for name in COLUMNS] for record in records)
    (folder / "results.svg").write_text(standalone(panel_chart(_panels(records), percent)), encoding="utf-8")


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


def _grouped(records: Records) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        cluster = rows.parse(record["row"]).cluster
        groups.setdefault(f"{record['model']}, {record['bandwidth']}, {cluster}", []).append(record)
    return groups


def _mode(record: Mapping[str, Any]) -> str:
    """Says how steps were taken, and what was not as it is by default."""
    plain = Scale(record["scale"])
    words = ["overlap" if record["overlap_step"] else "drain"]
    words += ["in order"] if record["in_order"] else []
    for name in ("partition_bytes", "credit_bytes"):
        if record[name] != getattr(plain, name):
            words.append(f"{name.removesuffix('_bytes')} {format_bytes(record[name])}")
    return ", ".join(words)


def markdown(records: Records) -> str:
    """Returns the tables of README.md."""
    lines = _table(
        [
            "cluster",
            "system, codec",
            "steps",
            "efficiency",
            "bound",
            "published",
            "step, s",
            "codec, s",
            "CPU",
        ],
        (_efficiency_cells(title, record) for title, of in _grouped(records).items() for record in of),
    )
    rounds = {record["row"]: record for record in records if record["model"] == "vgg16"}
    return "\n".join(
        [
            *lines,
            "",
            *_table(
                ["400 MB", "seconds", "wire's limit", "published", "CPU"],
                (
                    [
                        name,
                        seconds(record["round_seconds"]),
                        seconds(record["round_bound_seconds"]),
                        seconds(record["published_round_seconds"]),
                        percent(record["round_cpu_share"]),
                    ]
                    for name, record in rounds.items()
                    if record["round_all_seconds"]
                ),
            ),
        ]
    )


def _efficiency_cells(title: str, record: Mapping[str, Any]) -> list[str]:
    figure = "refused" if record["refused"] else f"**{percent(record['efficiency'])}**"
    return [
        title,
        f"{record['system']} {record['codec']}",
        _mode(record),
        figure,
        percent(record["bound"]),
        percent(record["published_efficiency"]),
        seconds(record["step_seconds"]),
        seconds(record["codec_seconds"]),
        percent(record["cpu_share"]),
    ]


def _table(titles: Sequence[str], cells: Iterable[Sequence[str]]) -> list[str]:
    return [_row(titles), "|---" * len(titles) + "|", *map(_row, cells)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
