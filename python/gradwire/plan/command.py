"""The command `gradwire plan`: its options, its table and its chart."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gradwire import codec_listing
from gradwire.terminal.counts import MOST_PROCESSES, MOST_THREADS
from gradwire.terminal.json_option import JsonOption, check_output, write_json
from gradwire.terminal.quantities import check_duration, check_rate

if TYPE_CHECKING:
    from rich.console import Console

    from gradwire.plan.calibration import Calibration
    from gradwire.plan.layer_profile import Profile
    from gradwire.plan.planner import Answer, Prediction, Question

_LATENCY = "50us"
_CORES = 8  # that a host is taken to have, beside its GPU, of which the profile does not say how many
_ASK_FOR_TIME = "The compute time is that of the profile's own device; --step-time gives yours."
# What --help shows together.
_MODEL = "Model"
_SWEEP = "Sweep"
_DETAILS = "Costs and threads"


def _models(incomplete: str) -> list[str]:
    """Lists the known models that begin so, for shell completion."""
    from gradwire.plan.layer_profile import KNOWN

    return [name for name in KNOWN if name.startswith(incomplete)]


def plan(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CMD...]",
            help="Training script to profile on this machine, in place of --model. Default: none.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="vgg16, resnet50, bert_large, gpt2_124m, or the file of a profile. Default: the profile of CMD.",
            rich_help_panel=_MODEL,
            autocompletion=_models,
        ),
    ] = None,
    step_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Compute time of one of your training steps on one worker, such as 90ms. The times of all layers are "
            "scaled to it. Needs --model. Default: the time in the profile.",
            callback=check_duration,
            rich_help_panel=_MODEL,
        ),
    ] = None,
    copies: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST_THREADS,
            help="Run N copies of CMD at once while it is profiled: as many workers as will share a machine. "
            "Default: 1.",
            rich_help_panel=_MODEL,
        ),
    ] = 1,
    profile_file: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="Write the profile of CMD to FILE, for --model. Default: it is not kept.",
            callback=check_output,
            rich_help_panel=_MODEL,
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            "-n",
            "--num-workers",
            metavar="N",
            min=1,
            max=MOST_PROCESSES,
            help="Number of workers. Default: 8.",
        ),
    ] = 8,
    servers: Annotated[
        int | None,
        typer.Option(
            "-s",
            "--num-servers",
            metavar="N",
            min=1,
            max=MOST_PROCESSES,
            help="Number of servers. Default: several numbers are tried.",
        ),
    ] = None,
    bandwidth: Annotated[
        str,
        typer.Option(
            metavar="RATE",
            help="Rate of each host's link, such as 1gbit. Default: 10gbit.",
            callback=check_rate,
        ),
    ] = "10gbit",
    latency: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help=f"One-way latency between hosts. Default: {_LATENCY}.",
            callback=check_duration,
        ),
    ] = _LATENCY,
    codecs: Annotated[
        list[str] | None,
        typer.Option(
            "--codec",
            metavar="CODEC",
            help="Codec to try: the name of a codec, or 2bit:reply=2bit. Repeatable. `gradwire codecs` lists all. "
            "Default: none, fp16, int8, nf4, nf2, 2bit; for an optimizer like Adam all but 2bit.",
            autocompletion=codec_listing.names,
        ),
    ] = None,
    placements: Annotated[
        list[str] | None,
        typer.Option(
            "--placement",
            metavar="PLACE",
            help="Placement to try. servers: on hosts of their own. beside: servers on the workers' hosts. peers: "
            "workers sum. ring: the store allreduce_mpi, for none, fp16 and bf16. Repeatable. Default: servers, peers.",
        ),
    ] = None,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain",
            help="The forward pass waits for all sums, as with DDP and without overlap_step. Default: so for a CMD "
            "with DDP, else it waits layer by layer.",
            rich_help_panel=_DETAILS,
        ),
    ] = False,
    codec_threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST_THREADS,
            help="Threads of a worker that encode and decode. Default: as gradwire chooses on the machine of the "
            f"profile: half of its cores, 1 to 4; of {_CORES} cores for a model.",
            rich_help_panel=_DETAILS,
        ),
    ] = None,
    server_threads: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST_THREADS,
            help="Threads of a server that sum. Default: 1.",
            rich_help_panel=_DETAILS,
        ),
    ] = 1,
    sweep: Annotated[
        Literal["bandwidth", "workers"] | None,
        typer.Option(
            help="bandwidth: predict over 50mbit to 100gbit. workers: predict over 2 to 4096 workers. Default: one "
            "prediction.",
            rich_help_panel=_SWEEP,
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw a chart of --sweep to FILE. Default: no chart.",
            callback=check_output,
            rich_help_panel=_SWEEP,
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Costs of codecs, as --calibrate writes them. Default: those that come with gradwire.",
            rich_help_panel=_DETAILS,
        ),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Measure the costs of codecs on this machine, write them to FILE, and exit. Takes minutes. "
            "Default: predict.",
            callback=check_output,
            rich_help_panel=_DETAILS,
        ),
    ] = None,
    codec_speeds: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take codec speeds from a record of `gradwire bench codec --json FILE`. Needs --calibrate. Default: "
            "measure them.",
            rich_help_panel=_DETAILS,
        ),
    ] = None,
    netlab: Annotated[
        bool,
        typer.Option(
            "--netlab",
            help="Predict for virtual hosts on this machine, as `gradwire ab --bandwidth` makes them. They share its "
            "cores, and each link has a queue of 20 ms. Needs --copies of all workers. Default: real hosts.",
            rich_help_panel=_DETAILS,
        ),
    ] = False,
    json_file: JsonOption = None,
) -> None:
    """Predict how a job scales, and recommend a codec, a placement and settings, or no compression.

    Nothing is sent. Steps are simulated layer by layer, with the scheduling decisions of the store. The costs of codecs
    were measured; --calibrate measures them here. All workers are assumed to be alike.

    [bold]Model or CMD[/bold]
    The compute times of a known --model are published ones: give your own with --step-time. A CMD is run on this
    machine until it has taken 30 steps of its optimizer, and its layers are timed (PyTorch). CMD is the command of
    one worker, without `gradwire run`. It runs alone, as rank 0 of a world of 1, and its gradients are not encoded. A
    warning says if steps varied too much to predict from.

    [bold]Results[/bold]
    "efficiency" is compute time over step time. "bound" is the efficiency that no schedule of these bytes can beat.
    "interval" is the range of the step. Its end assumes the slow steps of the profile, codecs, sums and messages at
    twice their cost, and nine tenths of the link's rate. Both ends leave 5 % for the simulator's own error. Measured
    steps are often longer than predicted.
    "exposed" is the time in which a worker waits for sums. "sent" is what leaves a worker's host in a step.
    Compute, codecs and sums share the cores of the machine that CMD was profiled on. A --model without such a
    machine has a core for every thread. Ctrl-C during --sweep keeps what was predicted until then.

    [bold]Examples[/bold]
      gradwire plan --model resnet50 --step-time 90ms -n 8 --bandwidth 10gbit
      gradwire plan --model vgg16 -n 8 -s 2 --bandwidth 10gbit
      gradwire plan --model bert_large -n 16 --bandwidth 1gbit --sweep bandwidth --svg bert.svg
      gradwire plan -n 4 --bandwidth 1gbit -- python train.py
      gradwire plan -n 8 --copies 2 --bandwidth 1gbit -- python train.py
    """
    from gradwire.launch.console import say
    from gradwire.plan import calibration as calibrations
    from gradwire.plan import layer_profile, planner, simulation
    from gradwire.settings.cores import default_codec_threads
    from gradwire.settings.units import parse_duration, parse_rate

    if calibrate is not None:
        _require_none_but({"--calibrate", "--codec-speeds"}, context, command)
        calibrate.write_text(calibrations.measure(say, codec_speeds).text(), encoding="utf-8")
        return
    if codec_speeds is not None:
        raise ValueError("plan: --codec-speeds needs --calibrate")
    if svg is not None and sweep is None:
        raise ValueError("plan: --svg draws a sweep: give --sweep bandwidth or --sweep workers")
    _check_source(model, step_time, copies, profile_file)
    seconds = None if step_time is None else parse_duration(step_time)
    rate, delay = float(parse_rate(bandwidth)), parse_duration(latency)
    places = tuple(
        simulation.placement_of(text) for text in dict.fromkeys(placements or ("peers", "servers"))
    )
    if servers is not None and not {"servers", "beside"} & set(places):
        raise ValueError(
            f"plan: -s {servers} needs --placement servers or beside: each peer is one, and a ring has none"
        )
    if server_threads > 1 and set(places) == {"ring"}:
        raise ValueError(
            f"plan: --server-threads {server_threads} needs --placement servers, beside or peers: a ring has neither"
        )
    if netlab and model is None and copies != workers:
        raise ValueError(
            f"plan: with --netlab, all {workers} workers share this machine: give --copies {workers}, not {copies}"
        )
    costs = calibrations.load(calibration)
    for codec in codecs or ():
        costs.speed(simulation.Variant.parse(codec).codec)
    profile = _profile(model, seconds, command or [], copies, profile_file)  # last: it may take minutes
    if codec_threads is None:
        codec_threads = default_codec_threads(_CORES if profile.machine is None else profile.machine.cores)
    question = planner.Question(
        workers=workers,
        servers=servers,
        bandwidth=rate,
        latency=delay,
        codecs=tuple(dict.fromkeys(codecs or ())),
        placements=places,
        schedule=simulation.Schedule(
            per_layer=not drain and not profile.is_ddp,
            codec_threads=codec_threads,
            server_threads=server_threads,
        ),
        netlab=netlab,
        profile=profile,
    )
    if netlab:
        _require_one_machine(question)
    is_known = model in layer_profile.KNOWN and step_time is None
    notes = [_ASK_FOR_TIME] if is_known else []
    if profile.is_ddp:
        notes.append("DDP waits for all sums after backward(), so --drain is taken.")
    _predict(question, costs, sweep, svg, json_file, notes=notes + _assumed(context, question))


def _check_source(model: str | None, step_time: str | None, copies: int, profile_file: Path | None) -> None:
    """Raises ValueError for an option that goes with a model alone, or with a command alone."""
    from gradwire.settings.units import parse_duration

    if copies > 1 and model is not None:
        raise ValueError(
            f"plan: --copies {copies} profiles copies of a command: give a command in place of --model"
        )
    if profile_file is not None and model is not None:
        raise ValueError("plan: --profile keeps the profile of a command: give a command in place of --model")
    if step_time is not None and model is None:
        raise ValueError(
            f"plan: --step-time {step_time} needs --model: a command is profiled here, and has its own step time"
        )
    if step_time is not None and parse_duration(step_time) <= 0:
        raise ValueError(f"plan: --step-time {step_time}: expected a time above 0, such as 90ms")


def _assumed(context: typer.Context, question: Question) -> list[str]:
    """Says what the network is taken to be, where the command line does not."""
    from gradwire.settings.units import format_rate

    taken = {
        "workers": f"{question.workers} workers (-n)",
        "bandwidth": f"links of {format_rate(question.bandwidth)} (--bandwidth)",
    }
    assumed = [text for name, text in taken.items() if not _is_given(context, name)]
    return [f"Assumed: {', '.join(assumed)}."] if assumed else []


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _predict(
    question: Question,
    costs: Calibration,
    sweep: Literal["bandwidth", "workers"] | None,
    svg: Path | None,
    json_file: str | None,
    *,
    notes: Sequence[str],
) -> None:
    """Shows and records the answer, with a sweep if there is to be one. notes: what to say of the question."""
    from gradwire.launch.console import say
    from gradwire.plan import planner
    from gradwire.plan.progress import shown
    from gradwire.terminal.plain_console import plain_console

    console = plain_console(json_file)
    with shown() as watch:
        found = planner.answer(question, costs, watch)
    record = found.record()
    rows: list[Prediction] = []
    interrupted = False
    if sweep is not None:
        rows, interrupted = _sweep(question, sweep, costs)
        record["sweep"] = [row.record() for row in rows]
    try:
        write_json(record, json_file)
        if svg is not None and sweep is not None and rows:
            svg.write_text(chart_of(rows, sweep), encoding="utf-8")
    finally:  # a file that cannot be written costs itself alone
        _show(found, question, console, notes)
        if sweep is not None and rows:
            _show_sweep(rows, sweep, console)
    if interrupted:
        say("plan: stopped by SIGINT before the sweep was complete")
        raise typer.Exit(128 + signal.SIGINT)


def _require_none_but(
    allowed: Collection[str], context: typer.Context, command: Sequence[str] | None
) -> None:
    """Raises ValueError for what --calibrate would leave aside."""
    given = ["the command"] if command else []
    for option in context.command.params:
        name = option.opts[0]
        if _is_given(context, option.name or "") and name.startswith("-") and name not in allowed:
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


def _profile(
    model: str | None, step_seconds: float | None, command: Sequence[str], copies: int, keep: Path | None
) -> Profile:
    """step_seconds: of compute, to which a model's times are scaled; None: as its profile has them."""
    from gradwire.launch.console import say
    from gradwire.launch.programs import refuse_launcher, require_program
    from gradwire.plan import layer_profile, step_profile

    if (model is None) == (not command):
        known = ", ".join(layer_profile.KNOWN)
        raise ValueError(f"plan: expected either --model ({known}, or a file) or a command to profile")
    if model is not None:
        found = layer_profile.find(model)
        return found if step_seconds is None else found.scaled(step_seconds / found.compute_seconds)
    refuse_launcher("plan", command, why="starts workers, and one alone is profiled")
    require_program("plan", command)
    at_once = f", {copies} copies at once" if copies > 1 else ""
    say(f"profiling {shlex.join(command)}: {step_profile.STEPS} steps{at_once}")
    profile = step_profile.of_command(command, copies)
    if keep is not None:
        keep.write_text(layer_profile.text_of(profile), encoding="utf-8")
    return profile


def _show(found: Answer, question: Question, console: Console, notes: Sequence[str]) -> None:
    from gradwire.plan.prediction_table import fitting_table
    from gradwire.settings.units import format_bytes, format_duration
    from gradwire.terminal.wide_table import print_table

    profile = question.profile
    stepped = "" if profile.optimizer is None else f", {profile.optimizer}"
    console.print(
        f"{profile.name}: {len(profile.layers)} layers, {format_bytes(4 * profile.elements)} of gradients, "
        f"{format_duration(profile.compute_seconds)} of compute a step{stepped}",
        highlight=False,
        soft_wrap=True,
    )
    for text in notes:
        console.print(text, highlight=False)
    if profile.warning is not None:
        console.print(f"WARNING: {profile.warning}", style="bold yellow", highlight=False)
    print_table(fitting_table(found.predictions, found.best, console), console)
    for said in (found.left_out, found.reason):
        if said is not None:
            console.print(said, highlight=False)
    for step in found.next_steps:
        console.print(step, highlight=False, soft_wrap=True)  # commands to copy, which no line end may cut


def _sweep(
    question: Question, over: Literal["bandwidth", "workers"], costs: Calibration
) -> tuple[list[Prediction], bool]:
    """Returns the rows of a sweep, and whether Ctrl-C ended it before the last of them."""
    from gradwire.plan import planner
    from gradwire.plan.progress import shown

    rows: list[Prediction] = []
    try:
        with shown() as watch:
            for row in planner.sweep(question, over, costs, watch):
                rows.append(row)  # one by one: each is there when Ctrl-C comes
    except KeyboardInterrupt:
        return rows, True
    return rows, False


def _show_sweep(rows: Sequence[Prediction], over: Literal["bandwidth", "workers"], console: Console) -> None:
    from gradwire.plan import planner
    from gradwire.plan.prediction_table import fitting_table
    from gradwire.settings.units import format_rate
    from gradwire.terminal.wide_table import print_table

    print_table(fitting_table(rows, None, console), console)
    if over == "bandwidth":
        highest = planner.pays_below(rows)
        told = "no codec tried makes a step 1 % shorter on any of these links"
        if not any(row.variant.lossy for row in rows):
            told = "no codec was tried"
        if highest is not None:
            told = f"the fastest link tried on which a codec makes a step 1 % shorter: {format_rate(highest)}"
        console.print(told, highlight=False)


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
