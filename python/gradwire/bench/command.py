"""The commands `gradwire bench codec`, `ps` and `allreduce`: their options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from gradwire.bench.tables import all_reduce_table, codec_table, servers_table, speed_table, speed_titles
from gradwire.terminal.json_option import JsonOption, check_report, write_json

if TYPE_CHECKING:
    from gradwire.bench.launches import BenchFailed

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Measure codecs against memcpy, and rounds against the wire and against other systems.",
)


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
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for a page with charts, DIR/index.html, and DIR/codec.svg.",
            callback=check_report,
        ),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Measure encode, decode and decode_sum beside memcpy of the same floats in the same run.

    "limit" is what memory allows: the bytes that memcpy moves over the bytes that the operation must move.

    [bold]Examples[/bold]

      gradwire bench codec --codec 2bit

      gradwire bench codec --threads 2 --report report/codecs
    """
    from gradwire import compress
    from gradwire.bench import codec_page
    from gradwire.bench.codec import Plan, measure
    from gradwire.launch.console import say

    plan = Plan(elements, piece_elements, threads, repeat)
    specs = codecs or compress.list()
    for spec in specs:
        compress.Compression.parse(spec)  # a misspelt one is to cost no minutes
    console = Console(stderr=json_file == "-")
    records: list[dict[str, Any]] = []
    try:
        for spec in specs:
            with console.status(f"{spec} ..."):
                rows = measure(spec, plan)
            records += rows
            console.print(codec_table(rows))
    finally:  # Ctrl-C, too, leaves what was measured
        if report is not None and records:
            say(f"wrote {codec_page.write_page(report, records, codec_page.facts_of(plan))}")
        if records:
            write_json(records, json_file)


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
    launches: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Jobs of each system, which take turns. Unset: 2 with --peer or --replicas, else 1.",
        ),
    ] = None,
    tensors: Annotated[
        int, typer.Option(min=1, help="Tensors that the gradient consists of; several run fused and not.")
    ] = 1,
    colocated: Annotated[bool, typer.Option("--colocated", help="Server i on the host of worker i.")] = False,
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help="Encrypt gradwire's connections; peers' stay as they are.")
    ] = False,
    replicas: Annotated[
        int, typer.Option(min=0, max=1, help="1: also with mirrored servers, in turns: what they cost.")
    ] = 0,
    mxnet_python: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A Python that has MXNet 1.9.1. Unset: one is made on first use."),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Measure one round through parameter servers: from every worker's gradient to the sum in its own buffer.

    Encode, residual, servers and decode are included, the slowest rank counts, and every round's result is
    checked. With --bandwidth each worker and server has a network namespace of its own. "limit" is the time
    that the links need for the encoded bytes. "sent" is what a worker's sockets sent; with --colocated it is what left
    its host, which is known only with --bandwidth. Returns 1 when a result was wrong or a system failed; the others are
    shown.

    [bold]Examples[/bold]

      gradwire bench ps --ranks 2 --bytes 100MB --codec 2bit --bandwidth 1gbit --peer mxnet

      gradwire bench ps --ranks 4 --servers 4 --colocated --bandwidth 10gbit
    """
    from gradwire.bench.plan import ServersPlan
    from gradwire.bench.ps import measure
    from gradwire.launch.console import say
    from gradwire.settings.units import parse_size

    plan = ServersPlan(
        ranks=ranks,
        servers=ranks if servers is None else servers,
        gradient_bytes=parse_size(size),
        bandwidth=bandwidth,
        codec=codec,
        reply=reply,
        transport=transport,
        peers=_words(peer),
        repeat=repeat,
        launches=launches or (2 if peer or replicas else 1),
        tensors=tensors,
        colocated=colocated,
        encrypt=encrypt,
        replicas=replicas,
        mxnet_python=mxnet_python,
    )
    records, troubles = measure(plan, say)
    if measured := _measured(records):
        Console(stderr=json_file == "-").print(servers_table(measured))
    write_json(records, json_file)
    _expect_success("ps", measured, troubles)


@app.command(name="allreduce")
def all_reduce(
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=1, help="Workers, one per host.")],
    size: Annotated[
        str, typer.Option("--bytes", "--size", metavar="SIZE", help="The fp32 gradient: 100MB.")
    ] = "100MB",
    tensors: Annotated[
        int, typer.Option(min=1, help="Tensors that the gradient consists of; several run fused and not.")
    ] = 1,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Of each host's link: 1gbit, or unshaped. Needs root. Unset: one host, over loopback.",
        ),
    ] = None,
    codecs: Annotated[
        list[str] | None,
        typer.Option("--codec", metavar="SPEC", help="Such as 2bit:threshold=0.5,reply=2bit; repeatable."),
    ] = None,
    reply: Annotated[
        str, typer.Option(help="Where SPEC names none: exact, fp32 or the codec's own name.")
    ] = "exact",
    store: Annotated[str, typer.Option(help="gradwire's stores, by commas. Unset: by --transport.")] = "",
    transport: Annotated[
        str, typer.Option(help="Of gradwire's store: zmq, mpi, or nccl, with a GPU for each rank.")
    ] = "zmq",
    checksum: Annotated[
        str, typer.Option(help="Payload checksums of gradwire, by commas: auto, always, off.")
    ] = "auto",
    peer: Annotated[
        str,
        typer.Option(help="Other systems, by commas: openmpi, gloo, gloo-fp16, gloo-powersgd, mxnet."),
    ] = "",
    repeat: Annotated[int, typer.Option(min=1, help="Timed rounds of each system.")] = 7,
    launches: Annotated[int, typer.Option(min=1, help="Jobs of each system, which take turns.")] = 2,
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help="Encrypt gradwire's connections; peers' stay as they are.")
    ] = False,
    mxnet_python: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A Python that has MXNet 1.9.1. Unset: one is made on first use."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for a page with charts: DIR/index.html.")
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Measure one all-reduce: from every rank's own gradient to the sum in the same place.

    Encode, residual, sums and decode are included, the slowest rank counts, and every round's result is
    checked. All systems run in turns on the same links. "limit" is the time that the links need for the encoded
    bytes: (N-1)/N of what is pushed and of what comes back leaves each host. "sent" is counted at gradwire's
    sockets, and must be that formula to within headers; for peers it is counted at the link. Returns 1 when a
    result was wrong or a system failed; the others are shown.

    [bold]Peers[/bold]

      openmpi        MPI_Allreduce over TCP, by mpirun and mpi4py

      gloo           torch.distributed.all_reduce; gloo-fp16: cast to fp16 before and back after

      gloo-powersgd  PyTorch's PowerSGD hook, rank 1, one bucket of 1000 x 1000 matrices; a lossy mean

      mxnet          dist_sync with a server beside every worker; with its own 2bit too if a codec is 2bit

    [bold]Examples[/bold]

      gradwire bench allreduce -n 4 --bandwidth 1gbit --peer gloo,openmpi --report report/dense

      gradwire bench allreduce -n 4 --bandwidth 1gbit --codec 2bit --codec 2bit:reply=2bit --peer gloo,gloo-fp16

      gradwire bench allreduce -n 2 --bandwidth 1gbit --tensors 1000 --bytes 1MB --peer openmpi
    """
    from gradwire.bench import page, stores
    from gradwire.bench.all_reduce import measure
    from gradwire.bench.plan import AllReducePlan
    from gradwire.launch.console import say
    from gradwire.settings.units import parse_size

    plan = AllReducePlan(
        ranks=ranks,
        gradient_bytes=parse_size(size),
        bandwidth=bandwidth,
        stores=_words(store) or (stores.of_transport(transport).name,),
        codecs=tuple(codecs or ["none"]),
        reply=reply,
        tensors=tensors,
        checksums=_words(checksum),
        peers=_words(peer),
        repeat=repeat,
        launches=launches,
        encrypt=encrypt,
        mxnet_python=mxnet_python,
    )
    records, troubles = measure(plan, say)
    console = Console(stderr=json_file == "-")
    if measured := _measured(records):
        console.print(all_reduce_table(measured))
        if speed_titles(measured):
            console.print(speed_table(measured))
        if report is not None:
            facts = page.facts_of(plan)
            if troubles:
                facts["failed"] = "; ".join(map(str, troubles))
            say(f"wrote {page.write_page(report, measured, facts)}")
    write_json(records, json_file)
    _expect_success("allreduce", measured, troubles)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _measured(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in records if row["failure"] is None]


def _expect_success(
    command: str, measured: Sequence[dict[str, Any]], troubles: Sequence[BenchFailed]
) -> None:
    """Raises the first that went wrong, once all that was measured has been written."""
    if troubles:
        raise troubles[0]
    wrong = [row["label"] for row in measured if not row["checksum"]]
    if wrong:
        raise RuntimeError(f"bench {command}: wrong sums: {', '.join(wrong)}")
