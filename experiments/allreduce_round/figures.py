"""What run.py makes of its records: a table, a picture, and whether each claim holds."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.bench.page import time_panel
from gradwire.report.chart import panel_chart, standalone
from gradwire.settings.units import format_duration

NOT_FUSED = "not fused"
Row = Mapping[str, Any]  # of results.json
COLUMNS = (
    *(
        "row",
        "label",
        "system",
        "store",
        "codec",
        "reply",
        "fused",
        "payload_checksum",
        "ranks",
        "bytes",
        "tensors",
    ),
    *("bandwidth", "seconds_min", "seconds_median", "wire_limit_seconds", "payload_bytes_per_rank"),
    *("bytes_sent_per_rank", "link_bytes_sent_per_rank", "cpu_seconds_per_gb", "machine_cpu_seconds_per_gb"),
)


@dataclass(frozen=True)
class Claim:
    """What a row must show of gradwire's all-reduce with a codec and reply.

    against: "limit": its median is at most bound times the wire's limit. Else the label of a peer, or NOT_FUSED, the
    same system without fusion: that one's median is at least bound times its own. fused: of small tensors, which
    form is meant.
    """

    row: str
    codec: str
    reply: str
    against: str
    bound: float
    fused: bool | None = None


CLAIMS = (
    *(Claim(f"dense-{n}-1gbit", "none", "none", "limit", 1.02) for n in (2, 4)),
    Claim("dense-2-10gbit", "none", "none", "limit", 1.12),
    *(Claim(f"dense-{n}-10gbit", "none", "none", "gloo", 1) for n in (2, 4)),
    Claim("dense-4-10gbit", "none", "none", "openmpi", 2),
    *(Claim(f"dense-{n}-loopback", "none", "none", "gloo", 1) for n in (2, 4)),
    *(
        Claim(f"2bit-4-{link}", "2bit", "2bit", against, bound)
        for link in ("100mbit", "1gbit")
        for against, bound in (("gloo", 12), ("gloo-fp16", 6), ("openmpi", 18), ("limit", 1.3))
    ),
    Claim("2bit-4-10gbit", "2bit", "2bit", "gloo", 3.5),
    Claim("2bit-4-10gbit", "2bit", "2bit", "gloo-fp16", 3),
    Claim("2bit-4-loopback", "2bit", "2bit", "gloo", 2),
    Claim("2bit-4-1gbit", "2bit", "exact", "gloo", 8),
    *(Claim(f"small-{n}-1gbit", "none", "none", "openmpi, fused", 1, fused=True) for n in (2, 4)),
    *(Claim(f"small-{n}-loopback", "none", "none", NOT_FUSED, 5, fused=True) for n in (2, 4)),
)


def reached(claim: Claim, records: Sequence[Row]) -> Iterator[tuple[str, float, bool]]:
    """Yields (label, ratio, holds) of every record that claim is about; more than one where checksums differ."""
    for record in records:
        about = (record["store"], record["codec"], record["reply"], record["fused"])
        if about != ("allreduce", claim.codec, claim.reply, claim.fused):
            continue
        own = record["seconds_median"]
        if claim.against == "limit":
            ratio = own / record["wire_limit_seconds"]
            yield record["label"], ratio, ratio <= claim.bound
        for other in records:
            if _is_rival(claim.against, record, other):
                ratio = other["seconds_median"] / own
                yield record["label"], ratio, ratio >= claim.bound


def _is_rival(against: str, record: Row, other: Row) -> bool:
    if against != NOT_FUSED:
        return bool(other["label"] == against)
    same = ("store", "codec", "reply", "payload_checksum")
    return other["fused"] is False and all(other[name] == record[name] for name in same)


def write(folder: Path, rows: Sequence[Row]) -> None:
    """Writes results.csv and results.svg."""
    with open(folder / "results.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for row in rows:
            table.writerows(
                [row["row"], *(record[name] for name in COLUMNS[1:])] for record in row["records"]
            )
    panels = [time_panel(row["records"], row["row"]) for row in rows]
    (folder / "results.svg").write_text(standalone(panel_chart(panels, format_duration)), encoding="utf-8")


def markdown(rows: Sequence[Row]) -> str:
    """Returns the tables of README.md."""
    lines = ["| claim | against | bound | measured | holds |", "|---|---|---|---|---|"]
    by_name = {row["row"]: row["records"] for row in rows}
    for claim in CLAIMS:
        for label, ratio, holds in reached(claim, by_name.get(claim.row, [])):
            sense = "<=" if claim.against == "limit" else ">="
            cells = [f"{claim.row}: {label}", claim.against, f"{sense} {claim.bound:g}", f"{ratio:.2f}"]
            lines.append(f"| {' | '.join(cells)} | {'yes' if holds else '**no**'} |")
    lines += [
        "",
        "| row | system | min, s | median, s | limit, s | median / limit | MB sent | CPU s/GB | load |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        load = "-".join(map(str, row["load_before_and_after"]))
        lines += [f"| {row['row']} | {_cells(record)} | {load} |" for record in row["records"]]
    return "\n".join(lines)


def _cells(record: Row) -> str:
    limit, sent = record["wire_limit_seconds"], record["bytes_sent_per_rank"]
    cells = [
        record["label"] + ("" if record["checksum"] else " WRONG SUMS"),
        f"{record['seconds_min']:.4f}",
        f"{record['seconds_median']:.4f}",
        "-" if limit is None else f"{limit:.4f}",
        "-" if not limit else f"{record['seconds_median'] / limit:.2f}",
        "-" if sent is None else f"{sent / 1e6:.3f}",
        f"{record['cpu_seconds_per_gb']:.2f}",
    ]
    return " | ".join(cells)
