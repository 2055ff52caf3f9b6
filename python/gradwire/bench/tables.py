"""What `gradwire bench` shows of its records on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from gradwire.bench.plan import UNSHAPED
from gradwire.settings.units import format_bytes, format_duration

Record = Mapping[str, Any]
CODEC_TITLES = ("operation", "G elements/s", "memcpy", "of memcpy", "limit", "of 8 adds")
ALL_REDUCE_TITLES = ("system", "min", "median", "limit", "x limit", "sent", "CPU s/GB")


def codec_table(rows: Sequence[Record]) -> Table:
    """One codec, a row per operation."""
    first = rows[0]
    title = (
        f"{first['codec']}: {first['bits_per_element']:.2f} bits an element, "
        f"relative error {first['relative_error']:.2g}"
    )
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column(CODEC_TITLES[0])
    for heading in CODEC_TITLES[1:]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*codec_row(row))
    return table


def codec_row(row: Record) -> list[str]:
    """The cells of CODEC_TITLES."""
    name = row["op"] + (f", {row['ways']} ways" if row["ways"] > 1 else "")
    name += f" with {row['residual']} residual" if row["residual"] != "none" else ""
    adds = row["ratio_to_separate_adds"]
    return [
        name,
        f"{row['elements_per_second'] / 1e9:.2f}",
        f"{row['memcpy_elements_per_second'] / 1e9:.2f}",
        f"{row['ratio_to_memcpy']:.2f}",
        f"{row['memory_limit_ratio']:.2f}",
        f"{adds:.2f}" if adds is not None else "",
    ]


def servers_table(records: Sequence[Record]) -> Table:
    """Rounds through parameter servers, a row per system."""
    first = records[0]
    hosts = " on the same hosts" if first["colocated"] else ""
    tensors = _tensors(first)
    title = f"{first['ranks']} workers, {first['servers']} servers{hosts}, {_what_and_where(first, tensors)}"
    table = _round_table(title, "system, codec, reply")
    for row in records:
        reply = "" if row["reply"] == "none" else f", {row['reply']}"
        reply += {None: "", True: ", fused", False: ", not fused"}[row["fused"]]
        reply += ", mirrored" if row["replicas"] else ""
        table.add_row(f"{row['system']} {row['codec']}{reply}{_verdict(row)}", *_figures(row))
    return table


def all_reduce_title(records: Sequence[Record]) -> str:
    first = records[0]
    return f"{first['ranks']} ranks, {_what_and_where(first, _tensors(first))}"


def _tensors(row: Record) -> str:
    return "" if row["tensors"] == 1 else f" in {row['tensors']} tensors"


def all_reduce_table(records: Sequence[Record]) -> Table:
    """All-reduces, a row per system."""
    table = _round_table(all_reduce_title(records), ALL_REDUCE_TITLES[0])
    for row in records:
        table.add_row(*all_reduce_row(row))
    return table


def all_reduce_row(row: Record) -> list[str]:
    """The cells of ALL_REDUCE_TITLES."""
    return [row["label"] + _verdict(row), *_figures(row)]


def speed_titles(records: Sequence[Record]) -> list[str]:
    """The peers, as the head of a table of speed_rows; empty where there is nothing to compare."""
    peers = list(records[0]["speed_over"])
    return ["times faster than", *peers] if peers else []


def speed_rows(records: Sequence[Record]) -> list[list[str]]:
    """One row per system of ours: a peer's median over its own."""
    ours = [row for row in records if row["speed_over"]]
    return [[row["label"], *(f"{ratio:.2f}" for ratio in row["speed_over"].values())] for row in ours]


def speed_table(records: Sequence[Record]) -> Table:
    """Of what speed_rows gives."""
    first, *peers = speed_titles(records)
    table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(first, overflow="fold")
    for peer in peers:
        table.add_column(peer, justify="right")
    for row in speed_rows(records):
        table.add_row(*row)
    return table


def _what_and_where(row: Record, tensors: str = "") -> str:
    where = {None: "loopback", UNSHAPED: "hosts of their own, unshaped"}.get(
        row["bandwidth"], row["bandwidth"]
    )
    return f"{format_bytes(row['bytes'])}{tensors}, {where}"


def _round_table(title: str, first: str) -> Table:
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(first, overflow="fold")
    for heading in ALL_REDUCE_TITLES[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _verdict(row: Record) -> str:
    return "" if row["checksum"] else " WRONG SUMS"


def _figures(row: Record) -> list[str]:
    limit, sent = row["wire_limit_seconds"], row["bytes_sent_per_rank"]
    return [
        format_duration(row["seconds_min"]),
        format_duration(row["seconds_median"]),
        "-" if limit is None else format_duration(limit),
        "-" if not limit else f"{row['seconds_median'] / limit:.2f}",
        "-" if sent is None else format_bytes(sent),
        f"{row['cpu_seconds_per_gb']:.2f}",
    ]
