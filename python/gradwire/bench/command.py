"""The commands `gradwire bench codec` and `gradwire bench ps`: options, tables, records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gradwire.units import format_bytes, format_duration

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Measure codecs against memcpy, and rounds against the wire and against other systems.",
)
JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write a JSON record to FILE; - is stdout.")
]


def _write(records: list[dict[str, Any]], file: str | None) -> None:
    from gradwire.cli import write_json  # late: cli imports this module

    write_json(records, file)


@app.command()
def codec(
    codecs: Annotated[
        list[str] | None,
        typer.Option("--codec", metavar="SPEC", help="Such as 2bit:threshold=0.5; repeatable. Unset: all."),
    ] = None,
    elements: Annotated[int, typer.Option(min=1, help="Floats in the gradient.")] = 25_000_000,
    threads: Annotated[int, typer.Option(min=1, help="Threads, for the codec and for memcpy.")] = 1,
    piece_elements: Annotated[
        int, typer.Option(min=0, help="Floats in one call, as in one partition; 0: a thread's whole share.")
    ] = 262_144,
    repeat: Annotated[int, typer.Option(min=1, help="Timed turns; medians are shown.")] = 7,
    json_file: JsonOption = None,
) -> None:
    """Measure encode, decode and decode_sum beside memcpy of the same floats in the same run.

    "limit" is what memory allows: the bytes that memcpy moves over the bytes that the operation must move.

    [bold]Example[/bold]

      gradwire bench codec --codec 2bit
    """
    from gradwire import compress
    from gradwire.bench.codec import Plan, measure

    plan = Plan(elements, piece_elements, threads, repeat)
    console = Console(stderr=json_file == "-")
    records: list[dict[str, Any]] = []
    for spec in codecs or compress.list():
        with console.status(f"{spec} ..."):
            rows = measure(spec, plan)
        records += rows
        console.print(_codec_table(rows))
    _write(records, json_file)


def _codec_table(rows: list[dict[str, Any]]) -> Table:
    first = rows[0]
    title = (
        f"{first['codec']}: {first['bits_per_element']:.2f} bits an element, "
        f"relative error {first['relative_error']:.2g}"
    )
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("operation")
    for heading in ("G elements/s", "memcpy", "of memcpy", "limit", "of 8 adds"):
        table.add_column(heading, justify="right")
    for row in rows:
        name = row["op"] + (f", {row['ways']} ways" if row["ways"] > 1 else "")
        name += " with residual" if row["residual"] != "none" else ""
        adds = row["ratio_to_separate_adds"]
        table.add_row(
            name,
            f"{row['elements_per_second'] / 1e9:.2f}",
            f"{row['memcpy_elements_per_second'] / 1e9:.2f}",
            f"{row['ratio_to_memcpy']:.2f}",
            f"{row['memory_limit_ratio']:.2f}",
            f"{adds:.2f}" if adds is not None else "",
        )
    return table


@app.command()
def ps(
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=1, help="Workers.")],
    size: Annotated[str, typer.Option("--bytes", metavar="SIZE", help="The fp32 gradient: 100MB.")] = "100MB",
    servers: Annotated[
        int | None, typer.Option("--servers", "-s", min=1, help="Servers. Unset: as many as workers.")
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Of each host's link: 1gbit. Needs root. Unset: loopback."),
    ] = None,
    codec: Annotated[str, typer.Option(metavar="SPEC", help="Such as 2bit:threshold=0.5.")] = "none",
    reply: Annotated[str, typer.Option(help="exact, fp32 or the codec's own name.")] = "exact",
    transport: Annotated[
        str, typer.Option(help="zmq; inproc: one rank and its server in one process.")
    ] = "zmq",
    peer: Annotated[str, typer.Option(help="Other systems in the same run, by commas: mxnet.")] = "",
    repeat: Annotated[int, typer.Option(min=1, help="Timed rounds of each system.")] = 7,
    colocated: Annotated[bool, typer.Option("--colocated", help="Server i on the host of worker i.")] = False,
    mxnet_python: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A Python that has MXNet 1.9.1. Unset: one is made on first use."),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Measure one round through parameter servers: from every worker's gradient to the sum in its own buffer.

    Encode, residual, servers and decode are included, the slowest rank counts, and every round's result is
    checked. With --bandwidth each worker and server has a network namespace of its own. "limit" is the time
    that the links need for the encoded bytes. Returns 1 when a result was wrong.

    [bold]Examples[/bold]

      gradwire bench ps --ranks 2 --bytes 100MB --codec 2bit --bandwidth 1gbit --peer mxnet

      gradwire bench ps --ranks 4 --servers 4 --colocated --bandwidth 10gbit
    """
    from gradwire.bench.plan import Plan
    from gradwire.bench.ps import measure
    from gradwire.console import say
    from gradwire.units import parse_size

    plan = Plan(
        ranks=ranks,
        servers=ranks if servers is None else servers,
        gradient_bytes=parse_size(size),
        bandwidth=bandwidth,
        codec=codec,
        reply=reply,
        transport=transport,
        peers=tuple(word for word in peer.split(",") if word),
        repeat=repeat,
        colocated=colocated,
        mxnet_python=mxnet_python,
    )
    records = measure(plan, say)
    Console(stderr=json_file == "-").print(_round_table(records))
    _write(records, json_file)
    if wrong := [f"{row['system']} {row['codec']}" for row in records if not row["checksum"]]:
        raise RuntimeError(f"bench ps: wrong sums: {', '.join(wrong)}")


def _round_table(records: list[dict[str, Any]]) -> Table:
    first = records[0]
    where = first["bandwidth"] or "loopback"
    hosts = " on the same hosts" if first["colocated"] else ""
    title = f"{first['ranks']} workers, {first['servers']} servers{hosts}, {format_bytes(first['bytes'])}, {where}"
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("system, codec, reply", overflow="fold")
    for heading in ("min", "median", "limit", "x limit", "sent", "CPU s/GB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in records:
        limit, sent = row["wire_limit_seconds"], row["bytes_sent_per_rank"]
        reply = "" if row["reply"] == "none" else f", {row['reply']}"
        table.add_row(
            f"{row['system']} {row['codec']}{reply}" + ("" if row["checksum"] else " WRONG SUMS"),
            format_duration(row["seconds_min"]),
            format_duration(row["seconds_median"]),
            "-" if limit is None else format_duration(limit),
            "-" if limit is None else f"{row['seconds_median'] / limit:.2f}",
            "-" if sent is None else format_bytes(sent),
            f"{row['cpu_seconds_per_gb']:.2f}",
        )
    return table
