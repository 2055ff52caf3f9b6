"""The command `gradwire plan`: its options, its table and its chart."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gradwire.terminal.json_option import JsonOption, check_output, write_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gradwire.plan.calibration import Calibration
    from gradwire.plan.layer_profile import Profile
    from gradwire.plan.planner import Answer, Prediction, Question

_LATENCY = "50us"
_MOST_NODES = 65_536  # minutes of simulating
_MOST_THREADS = 1_024


def plan(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CMD...]", help="A training job to profile here, in place of --model."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="vgg16, resnet50, bert_large, or a profile's JSON file.")
    ] = None,
    workers: Annotated[int, typer.Option("-n", "--num-workers", min=1, max=_MOST_NODES, help="Workers.")] = 8,
    servers: Annotated[
        int | None,
        typer.Option("-s", "--num-servers", min=1, max=_MOST_NODES, help="Servers. Unset: several numbers."),
    ] = None,
    bandwidth: Annotated[str, typer.Option(metavar="RATE", help="Of each host's link.")] = "10gbit",
    latency: Annotated[str, typer.Option(metavar="TIME", help="From host to host.")] = _LATENCY,
    codecs: Annotated[
        list[str] | None,
        typer.Option(
            "--codec",
            metavar="SPEC",
            help="Any codec's name (its own parameters: topk is 1 %), or 2bit:reply=2bit; repeatable. Unset: none, "
            "fp16, int8, 2bit, 2bit:reply=2bit.",
        ),
    ] = None,
    placements: Annotated[
        list[str] | None,
        typer.Option(
            "--placement",
            metavar="PLACE",
            help="servers, peers, beside (servers on workers' hosts) or ring (the store allreduce_mpi: in order and "
            "drained, of none, fp16 and bf16); repeatable. Unset: servers, peers.",
        ),
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Forward waits for all sums (no overlap_step).")
    ] = False,
    codec_threads: Annotated[int, typer.Option(min=1, max=_MOST_THREADS, help="Of a worker.")] = 1,
    server_threads: Annotated[int, typer.Option(min=1, max=_MOST_THREADS, help="Of a server.")] = 1,
    sweep: Annotated[
        Literal["bandwidth", "workers"] | None,
        typer.Option(help="Predict over 50mbit to 100gbit, or over 2 to 4096 workers."),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A chart of --sweep.", callback=check_output)
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Costs of codecs. Unset: those that come with gradwire."),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Measure this machine (minutes), write FILE, and end.", callback=check_output
        ),
    ] = None,
    codec_speeds: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --calibrate: codecs from this record of `gradwire bench codec --json`."
        ),
    ] = None,
    copies: Annotated[
        int,
        typer.Option(
            min=1,
            max=_MOST_THREADS,
            help="Copies of CMD to time at once: as many workers as will share a machine.",
        ),
    ] = 1,
    netlab: Annotated[
        bool,
        typer.Option(
            "--netlab",
            help="The hosts are netlab's, as of `gradwire ab --bandwidth`: all on this machine, whose cores servers "
            "share, too, with a queue of 20 ms before each link. Needs --copies of all workers.",
        ),
    ] = False,
    profile_file: Annotated[
        Path | None,
        typer.Option(
            "--profile", metavar="FILE", help="Keep the profile of CMD there.", callback=check_output
        ),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Predict how a job scales, and say which codec, placement, servers and partition to take, or not to compress.

    Nothing is sent: steps are simulated with the store's own decisions, layer by layer. What codecs cost was measured;
    --calibrate does so here. All workers are taken to be alike. Compute, codecs and sums share the cores of the machine
    that a command was profiled on; a --model without such a machine has a core for every thread. Measured steps are
    often longer than predicted, so each prediction has an interval: from the fast steps of the profile, to its slow
    steps, with codecs, sums and messages at twice their cost and a link that carries nine tenths. "sent" is what
    leaves a worker's host in a step: its pushes, and the replies of a server on it. Ctrl-C during --sweep leaves
    what was predicted until then.

    With CMD, it is run on this machine until it has taken 30 steps of its optimizer, and ended. Its layers are timed
    (PyTorch). It is alone meanwhile, whatever store it asks for, and its gradients are not encoded: CMD is the command
    of a worker, without `gradwire run`. Where several workers will share a machine, --copies times as many at once. A
    warning says when steps varied so much that they have to be measured again.

    [bold]Examples[/bold]

      gradwire plan --model vgg16 -n 8 -s 2 --bandwidth 10gbit

      gradwire plan --model bert_large -n 16 --bandwidth 1gbit --sweep bandwidth --svg bert.svg

      gradwire plan -n 4 --bandwidth 1gbit -- python train.py

      gradwire plan -n 8 --copies 2 --bandwidth 1gbit -- python train.py
    """
    from rich.console import Console

    from gradwire.launch.console import say
    from gradwire.plan import calibration as calibrations
    from gradwire.plan import planner, simulation
    from gradwire.settings.units import parse_duration, parse_rate

    if calibrate is not None:
        _require_none_but({"--calibrate", "--codec-speeds"}, context, command)
        calibrate.write_text(calibrations.measure(say, codec_speeds).text(), encoding="utf-8")
        return
    if codec_speeds is not None:
        raise ValueError("plan: --codec-speeds goes with --calibrate")
    if svg is not None and sweep is None:
        raise ValueError("plan: --svg draws a sweep: give --sweep bandwidth or --sweep workers")
    if copies > 1 and model is not None:
        raise ValueError(f"plan: --copies {copies} times copies of a command: give one in place of --model")
    if profile_file is not None and model is not None:
        raise ValueError("plan: --profile keeps the profile of a command: give one in place of --model")
    places = tuple(simulation.placement_of(text) for text in placements or ("peers", "servers"))
    if servers is not None and not {"servers", "beside"} & set(places):
        raise ValueError(
            f"plan: -s {servers} goes with --placement servers or beside: each peer is one, and a ring has none"
        )
    if server_threads > 1 and set(places) == {"ring"}:
        raise ValueError(
            f"plan: --server-threads {server_threads} goes with servers and peers: a ring has neither"
        )
    if netlab and model is None and copies != workers:
        raise ValueError(
            f"plan: with --netlab, all {workers} workers share this machine: give --copies {workers}, not {copies}"
        )
    costs = calibrations.load(calibration)
    console = Console(stderr=json_file == "-")
    question = planner.Question(
        workers=workers,
        servers=servers,
        bandwidth=float(parse_rate(bandwidth)),
        latency=parse_duration(latency),
        codecs=tuple(codecs or planner.CODECS),
        placements=places,
        schedule=simulation.Schedule(
            per_layer=not drain, codec_threads=codec_threads, server_threads=server_threads
        ),
        netlab=netlab,
        profile=_profile(model, command or [], copies, profile_file),  # last: it may take minutes
    )
    if netlab:
        _require_one_machine(question)
    found = planner.answer(question, costs)
    _show(found, question, console)
    record = found.record()
    interrupted = False
    if sweep is not None:
        rows, interrupted = _sweep(question, sweep, costs, svg, console)
        record["sweep"] = [row.record() for row in rows]
    write_json(record, json_file)
    if interrupted:
        say("plan: stopped by SIGINT before the sweep was complete")
        raise typer.Exit(128 + signal.SIGINT)


def _require_none_but(
    allowed: Collection[str], context: typer.Context, command: Sequence[str] | None
) -> None:
    """Raises ValueError for what --calibrate would leave aside."""
    given = ["the command"] if command else []
    for option in context.command.params:
        name, source = option.opts[0], context.get_parameter_source(option.name or "")
        is_given = source is not None and source.name == "COMMANDLINE"
        if is_given and name.startswith("-") and name not in allowed:
            given.append(name)
    if given:
        raise ValueError(
            f"plan: --calibrate measures this machine and predicts nothing: leave {', '.join(given)} out"
        )


def _require_one_machine(question: Question) -> None:
    machine = question.profile.machine
    if machine is None or machine.workers != question.workers:
        known = "not known" if machine is None else f"one that {machine.workers} at once were timed on"
        raise ValueError(
            f"plan: with --netlab, {question.workers} workers share a machine, and the profile's is {known}: profile a "
            f"command with --copies {question.workers}"
        )


def _profile(model: str | None, command: Sequence[str], copies: int, keep: Path | None) -> Profile:
    from gradwire.launch.console import say
    from gradwire.launch.job import require_program
    from gradwire.plan import layer_profile, step_profile

    if (model is None) == (not command):
        known = ", ".join(layer_profile.KNOWN)
        raise ValueError(f"plan: expected either --model ({known}, or a file) or a command to profile")
    if model is not None:
        return layer_profile.find(model)
    require_program("plan", command)
    at_once = f", {copies} copies at once" if copies > 1 else ""
    say(f"profiling {shlex.join(command)}: {step_profile.STEPS} steps{at_once}")
    profile = step_profile.of_command(command, copies)
    if keep is not None:
        keep.write_text(layer_profile.text_of(profile), encoding="utf-8")
    return profile


def _show(found: Answer, question: Question, console: Console) -> None:
    from gradwire.settings.units import format_bytes, format_duration
    from gradwire.terminal.wide_table import print_table

    profile = question.profile
    console.print(
        f"{profile.name}: {len(profile.layers)} layers, {format_bytes(4 * profile.elements)} of gradients, "
        f"{format_duration(profile.compute_seconds)} of compute a step",
        highlight=False,
    )
    if profile.warning is not None:
        console.print(f"WARNING: {profile.warning}", style="bold yellow", highlight=False)
    print_table(_table(found.predictions, found.best), console)
    for text in (found.left_out, found.reason):
        if text is not None:
            console.print(text, highlight=False)


def _table(rows: Sequence[Prediction], best: Prediction | None) -> Table:
    """A row for each prediction. What all have in common stands above it, or the table would be too wide."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    cells = [_cells(row) for row in rows]
    varied = [name for name in cells[0] if name in _ALWAYS or len({row[name] for row in cells}) > 1]
    common = [f"{name} {text}" for name, text in cells[0].items() if name not in varied]
    table = Table(
        box=SIMPLE_HEAD,
        title=", ".join(common),
        title_justify="left",
        title_style="dim",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in varied:
        left = name in ("codec", "placement")
        table.add_column(
            name,
            justify="left" if left else "right",
            no_wrap=not left,
            overflow="fold",
            min_width=_NARROWEST_WORDS if left else None,
        )
    for row, texts in zip(rows, cells, strict=True):
        table.add_row(*(texts[name] for name in varied), style="bold" if row is best else None)
    return table


_NARROWEST_WORDS = 7  # of "2bit:reply=2bit", "servers: 4"
_ALWAYS = ("codec", "effi-\nciency", "bound", "step", "interval", "exposed", "sent", "link\nbusy")


def _cells(row: Prediction) -> dict[str, str]:
    from gradwire.settings.units import format_bytes, format_duration, format_rate

    credit, servers = row.schedule.credit_bytes, row.network.servers
    return {
        "codec": str(row.variant),
        "placement": f"{row.network.placement}: {servers}" if servers else row.network.placement,
        "partition": format_bytes(row.schedule.partition_bytes),
        "credit": "-" if credit is None else format_bytes(credit),
        "workers": str(row.network.workers),
        "link": format_rate(row.network.bandwidth),
        "effi-\nciency": f"{100 * row.efficiency:.1f}%",
        "bound": f"{100 * row.bound:.1f}%",
        "step": format_duration(row.step_seconds),
        "interval": _interval(row),
        "exposed": format_duration(row.exposed_seconds),
        "sent": format_bytes(row.sent_bytes),
        "link\nbusy": f"{100 * row.busiest_link:.0f}%",
    }


def _interval(row: Prediction) -> str:
    """Writes "110-150", both ends in the unit of the step beside it."""
    from gradwire.settings.units import format_duration

    if row.step_interval is None:
        return "-"
    scale = (
        float(format_duration(row.step_seconds).split()[0]) / row.step_seconds if row.step_seconds else 1.0
    )
    low, high = (f"{scale * end:.3g}" for end in row.step_interval)
    return f"{low}-{high}"


def _sweep(
    question: Question,
    over: Literal["bandwidth", "workers"],
    costs: Calibration,
    svg: Path | None,
    console: Console,
) -> tuple[list[Prediction], bool]:
    """Shows and draws a sweep. Returns its rows, and whether Ctrl-C ended it before the last of them."""
    from gradwire.plan import planner
    from gradwire.settings.units import format_rate
    from gradwire.terminal.wide_table import print_table

    rows: list[Prediction] = []
    interrupted = False
    try:
        for row in planner.sweep(question, over, costs):
            rows.append(row)  # one by one: each is there when Ctrl-C comes
    except KeyboardInterrupt:
        interrupted = True
    if not rows:
        return rows, interrupted
    print_table(_table(rows, None), console)
    if over == "bandwidth":
        highest = planner.pays_below(rows)
        told = "no codec tried gains a point on any of these links"
        if not any(row.variant.lossy for row in rows):
            told = "no codec was tried"
        if highest is not None:
            told = f"the fastest link tried on which a codec gains more than a point: {format_rate(highest)}"
        console.print(told, highlight=False)
    if svg is not None:
        svg.write_text(chart_of(rows, over), encoding="utf-8")
    return rows, interrupted


def chart_of(rows: Sequence[Prediction], over: Literal["bandwidth", "workers"]) -> str:
    """Draws efficiency against bandwidth or workers, a curve for each codec, as the text of an .svg file."""
    from gradwire.report.chart import Series, line_chart, standalone
    from gradwire.settings.units import format_rate

    def x_of(row: Prediction) -> float:
        return row.network.bandwidth if over == "bandwidth" else float(row.network.workers)

    series = []
    for name in dict.fromkeys(str(row.variant) for row in rows):
        curve = sorted((row for row in rows if str(row.variant) == name), key=x_of)
        x, y = tuple(x_of(row) for row in curve), tuple(100 * row.efficiency for row in curve)
        series.append(Series(name, x, y, y, y))
    label = "link" if over == "bandwidth" else "workers"
    return standalone(
        line_chart(
            series,
            label,
            "efficiency, %",
            format_rate if over == "bandwidth" else "{:.0f}".format,
            "{:.0f} %".format,
            logarithmic=True,
            legend=True,
        )
    )
