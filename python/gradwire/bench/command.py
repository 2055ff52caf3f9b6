"""The commands `gradwire bench codec`, `ps` and `allreduce`: their options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire import codec_listing
from gradwire.terminal.counts import MOST_ELEMENTS, MOST_PROCESSES, MOST_REPETITIONS, MOST_THREADS
from gradwire.terminal.help_page import Command, Group
from gradwire.terminal.json_option import JsonOption, check_report, write_json
from gradwire.terminal.quantities import check_rate, check_size

if TYPE_CHECKING:
    from gradwire.bench.launches import BenchFailed

app = typer.Typer(
    name="bench",
    cls=Group,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="""Measure codecs against memcpy, and rounds against the link and against other systems.

[bold]Examples[/bold]
  gradwire bench codec --codec 2bit
  gradwire bench ps -n 2 --codec 2bit
  gradwire bench allreduce -n 4 --bandwidth 1gbit --peer gloo""",
)

# What --help shows together.
_JOB, _CODEC, _PEERS, _MEASUREMENT = "Job", "Codec", "Other systems", "Measurement"


def _check_rate(text: str | None) -> str | None:
    from gradwire.bench.plan import UNSHAPED

    return text if text == UNSHAPED else check_rate(text)


@app.command(cls=Command)
def codec(
    codecs: Annotated[
        list[str] | None,
        typer.Option(
            "--codec",
            metavar="CODEC",
            help="Codec to measure, such as 2bit:threshold=0.5. Repeatable. `gradwire codecs` lists all codecs. "
            "Default: all codecs.",
            autocompletion=codec_listing.names,
        ),
    ] = None,
    elements: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=MOST_ELEMENTS, help="Floats in the gradient. Default: 25000000."
        ),
    ] = 25_000_000,
    threads: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=MOST_THREADS, help="Threads for the codec and for memcpy. Default: 1."
        ),
    ] = 1,
    piece_elements: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=MOST_ELEMENTS,
            help="Floats in one call, as in one partition. 0: a thread's whole share. Default: 262144.",
        ),
    ] = 262_144,
    repeat: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST_REPETITIONS,
            help="Timed calls of each operation; medians are shown. Default: 7.",
        ),
    ] = 7,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for a page with charts: DIR/index.html and DIR/codec.svg. Default: no page.",
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
    from gradwire.bench.tables import codec_table
    from gradwire.launch.console import say
    from gradwire.terminal.plain_console import lasting_console, plain_console

    plan = Plan(elements, piece_elements, threads, repeat)
    specs = codecs or compress.list()
    for spec in specs:
        compress.Compression.parse(spec)  # a misspelt one is to cost no minutes
    is_kept = json_file is not None or report is not None
    console = lasting_console(json_file) if is_kept else plain_console(json_file)
    records: list[dict[str, Any]] = []
    try:
        for spec in specs:
            with console.status(f"{spec} ..."):
                rows = measure(spec, plan)
            records += rows
            console.print(codec_table(rows))
    finally:  # Ctrl-C, too, leaves what was measured
        if records:
            write_json(records, json_file)
        if report is not None and records:
            say(f"wrote {codec_page.write_page(report, records, codec_page.facts_of(plan))}")


@app.command(cls=Command)
def ps(
    ranks: Annotated[
        int,
        typer.Option(
            "--ranks",
            "-n",
            metavar="N",
            min=1,
            max=MOST_PROCESSES,
            help="Number of workers.",
            rich_help_panel=_JOB,
        ),
    ],
    size: Annotated[
        str,
        typer.Option(
            "--bytes",
            metavar="SIZE",
            help="Bytes of the fp32 gradient. Default: 100MB.",
            callback=check_size,
            rich_help_panel=_JOB,
        ),
    ] = "100MB",
    servers: Annotated[
        int | None,
        typer.Option(
            "--servers",
            "-s",
            metavar="N",
            min=1,
            max=MOST_PROCESSES,
            help="Number of servers. Default: one per worker.",
            rich_help_panel=_JOB,
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Rate of each host's virtual link, such as 1gbit. Needs root. Default: loopback, not limited.",
            callback=_check_rate,
            rich_help_panel=_JOB,
        ),
    ] = None,
    codec: Annotated[
        str,
        typer.Option(
            metavar="CODEC",
            help="Codec, such as 2bit:threshold=0.5. `gradwire codecs` lists all codecs. Default: none.",
            rich_help_panel=_CODEC,
            autocompletion=codec_listing.names,
        ),
    ] = "none",
    reply: Annotated[
        str,
        typer.Option(
            metavar="REPLY",
            help="How servers send sums: exact, fp32 or the codec's own name. Default: exact.",
            rich_help_panel=_CODEC,
        ),
    ] = "exact",
    transport: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="zmq: TCP and local sockets. inproc: one rank and its server in one process. Default: zmq.",
            rich_help_panel=_JOB,
        ),
    ] = "zmq",
    peer: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Other systems to measure in the same run, separated by commas: mxnet. Default: none.",
            rich_help_panel=_PEERS,
        ),
    ] = "",
    repeat: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST_REPETITIONS,
            help="Timed rounds of each system. Default: 7.",
            rich_help_panel=_MEASUREMENT,
        ),
    ] = 7,
    launches: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST_REPETITIONS,
            help="Jobs of each system. Systems take turns. Default: 2 with --peer or --replicas, else 1.",
            rich_help_panel=_MEASUREMENT,
        ),
    ] = None,
    tensors: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST_ELEMENTS,
            help="Tensors that the gradient consists of. Several are measured with fusion and without. Default: 1.",
            rich_help_panel=_JOB,
        ),
    ] = 1,
    colocated: Annotated[
        bool,
        typer.Option(
            "--colocated",
            help="Server i runs on the host of worker i. Default: servers have hosts of their own.",
            rich_help_panel=_JOB,
        ),
    ] = False,
    encrypt: Annotated[
        bool,
        typer.Option(
            "--encrypt",
            help="Encrypt gradwire's connections, but not those of other systems. Default: off.",
            rich_help_panel=_JOB,
        ),
    ] = False,
    replicas: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=1,
            help="1: measure with mirrored servers too, in turns, to show what mirrors cost. Default: 0.",
            rich_help_panel=_JOB,
        ),
    ] = 0,
    mxnet_python: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Python interpreter that has MXNet 1.9.1. Default: an environment made on first use.",
            rich_help_panel=_PEERS,
        ),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Measure one round through parameter servers: from every worker's gradient to the sum in its own buffer.

    The time includes encode, residual, servers and decode. The slowest rank counts, and every result is checked. With
    --bandwidth, each worker and server has a network namespace of its own.

    "limit" is the time that the links need for the encoded bytes. "sent" is what a worker's sockets sent. With
    --colocated it is what left its host, which is known only with --bandwidth. The exit code is 1 if a result was
    wrong or a system failed; the other systems are still shown.

    [bold]Examples[/bold]
      gradwire bench ps -n 2 --codec 2bit
      gradwire bench ps --ranks 2 --bytes 100MB --codec 2bit --bandwidth 1gbit --peer mxnet
      gradwire bench ps --ranks 4 --servers 4 --colocated --bandwidth 10gbit
    """
    from gradwire.bench.plan import ServersPlan
    from gradwire.bench.ps import measure
    from gradwire.bench.tables import servers_table
    from gradwire.launch.console import say
    from gradwire.settings.units import parse_size
    from gradwire.terminal.plain_console import plain_console

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
    measured = _measured(records)
    try:
        write_json(records, json_file)
    finally:  # a file that cannot be written costs itself alone
        if measured:
            plain_console(json_file).print(servers_table(measured))
    _expect_success("ps", measured, troubles)


@app.command(name="allreduce", cls=Command)
def all_reduce(
    ranks: Annotated[
        int,
        typer.Option(
            "--ranks",
            "-n",
            metavar="N",
            min=1,
            max=MOST_PROCESSES,
            help="Number of workers, one per host.",
            rich_help_panel=_JOB,
        ),
    ],
    size: Annotated[
        str,
        typer.Option(
            "--bytes",
            "--size",
            metavar="SIZE",
            help="Bytes of the fp32 gradient. Default: 100MB.",
            callback=check_size,
            rich_help_panel=_JOB,
        ),
    ] = "100MB",
    tensors: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST_ELEMENTS,
            help="Tensors that the gradient consists of. Several are measured with fusion and without. Default: 1.",
            rich_help_panel=_JOB,
        ),
    ] = 1,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Rate of each host's virtual link, such as 1gbit, or unshaped for links without a limit. Needs root. "
            "Default: one host, over loopback.",
            callback=_check_rate,
            rich_help_panel=_JOB,
        ),
    ] = None,
    codecs: Annotated[
        list[str] | None,
        typer.Option(
            "--codec",
            metavar="CODEC",
            help="Codec, such as 2bit:threshold=0.5,reply=2bit. Repeatable. `gradwire codecs` lists all codecs. "
            "Default: none.",
            rich_help_panel=_CODEC,
            autocompletion=codec_listing.names,
        ),
    ] = None,
    reply: Annotated[
        str,
        typer.Option(
            metavar="REPLY",
            help="How sums travel where --codec names no reply: exact, fp32 or the codec's own name. Default: exact.",
            rich_help_panel=_CODEC,
        ),
    ] = "exact",
    store: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Stores of gradwire, separated by commas: allreduce, dist_sync, dist_sync_mpi, allreduce_mpi, nccl. "
            "Default: the first of --transport.",
            rich_help_panel=_JOB,
        ),
    ] = "",
    transport: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Transport of gradwire's store: zmq, mpi, or nccl, which needs a GPU for each rank. Default: that of "
            "--store, else zmq.",
            rich_help_panel=_JOB,
        ),
    ] = None,
    checksum: Annotated[
        str,
        typer.Option(
            metavar="WHEN",
            help="Payload checksums of gradwire, separated by commas: auto, always, off. Default: auto.",
            rich_help_panel=_JOB,
        ),
    ] = "auto",
    peer: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Other systems, separated by commas: openmpi, gloo, gloo-fp16, gloo-powersgd, mxnet. Default: none.",
            rich_help_panel=_PEERS,
        ),
    ] = "",
    repeat: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST_REPETITIONS,
            help="Timed rounds of each system. Default: 7.",
            rich_help_panel=_MEASUREMENT,
        ),
    ] = 7,
    launches: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST_REPETITIONS,
            help="Jobs of each system. Systems take turns. Default: 2.",
            rich_help_panel=_MEASUREMENT,
        ),
    ] = 2,
    encrypt: Annotated[
        bool,
        typer.Option(
            "--encrypt",
            help="Encrypt gradwire's connections, but not those of other systems. Default: off.",
            rich_help_panel=_JOB,
        ),
    ] = False,
    mxnet_python: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Python interpreter that has MXNet 1.9.1. Default: an environment made on first use.",
            rich_help_panel=_PEERS,
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for a page with charts: DIR/index.html. Default: no page.",
            callback=check_report,
        ),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Measure one all-reduce: from every rank's own gradient to the sum in the same place.

    The time includes encode, residual, sums and decode. The slowest rank counts, and every result is checked. All
    systems take turns on the same links.

    "limit" is the time that the links need for the encoded bytes: (N-1)/N of what is pushed and of what comes back
    leaves each host. "sent" is counted at gradwire's sockets, and matches that formula to within headers. For other
    systems it is counted at the link. The exit code is 1 if a result was wrong or a system failed; the other systems
    are still shown.

    [bold]Other systems[/bold]
      openmpi        MPI_Allreduce over TCP, by mpirun and mpi4py
      gloo           torch.distributed.all_reduce; gloo-fp16: cast to fp16 before and back after
      gloo-powersgd  PyTorch's PowerSGD hook, rank 1, one bucket of 1000 x 1000 matrices; a lossy mean
      mxnet          dist_sync with a server beside every worker; with its own 2bit too if a codec is 2bit

    [bold]Examples[/bold]
      gradwire bench allreduce -n 2 --codec none --codec 2bit
      gradwire bench allreduce -n 4 --bandwidth 1gbit --peer gloo,openmpi --report report/dense
      gradwire bench allreduce -n 4 --bandwidth 1gbit --codec 2bit --codec 2bit:reply=2bit --peer gloo,gloo-fp16
      gradwire bench allreduce -n 2 --bandwidth 1gbit --tensors 1000 --bytes 1MB --peer openmpi
    """
    from gradwire.bench import page, stores
    from gradwire.bench.all_reduce import measure
    from gradwire.bench.plan import AllReducePlan
    from gradwire.bench.tables import all_reduce_table, speed_table, speed_titles
    from gradwire.launch.console import say
    from gradwire.settings.units import parse_size
    from gradwire.terminal.plain_console import plain_console

    plan = AllReducePlan(
        ranks=ranks,
        gradient_bytes=parse_size(size),
        bandwidth=bandwidth,
        stores=stores.chosen(_words(store), transport),
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
    measured = _measured(records)
    console = plain_console(json_file)
    try:
        write_json(records, json_file)
        if report is not None and measured:
            facts = page.facts_of(plan)
            if troubles:
                facts["failed"] = "; ".join(map(str, troubles))
            say(f"wrote {page.write_page(report, measured, facts)}")
    finally:  # a file that cannot be written costs itself alone
        if measured:
            console.print(all_reduce_table(measured))
            if speed_titles(measured):
                console.print(speed_table(measured))
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
