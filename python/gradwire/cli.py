"""The `gradwire` command: reads options, calls what does the work, writes errors as one clean line."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import io
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from gradwire import codec_listing
from gradwire.autotune.command import tune
from gradwire.launch.command import ALIASES, run
from gradwire.plan.command import plan
from gradwire.settings.suggestions import nearest
from gradwire.terminal.counts import MOST_PROCESSES, MOST_REPETITIONS
from gradwire.terminal.help_page import COMMAND_ARGUMENTS, Command, Group, public_commands, public_options
from gradwire.terminal.json_option import (
    JsonOption,
    SecretJsonOption,
    check_output,
    check_report,
    write_json,
    write_secret_json,
)
from gradwire.terminal.quantities import check_rate

# What --help shows together.
_TRAIN, _COMPARE, _MEASURE, _INSPECT = "Train", "Compare", "Measure", "Inspect"
_NETWORK = "Network"  # of options
# Words for a command that people try.
_SYNONYMS = {
    "train": "run",
    "start": "run",
    "launch": "run",
    "compare": "ab",
    "benchmark": "bench",
    "predict": "plan",
    "trace": "timeline",
    "check": "doctor",
    "info": "doctor",
}

# What an option is called in other commands: the word that the nearest spelling would miss.
_OPTION_SYNONYMS = {
    "--codec": ("--compression", "--arm"),
    "--compression": ("--codec", "--arm"),
    "--workers": ("--num-workers",),
    "--np": ("--num-workers",),
    "--nproc-per-node": ("--num-workers",),
    "--servers": ("--num-servers",),
}

app = typer.Typer(
    name="gradwire",
    cls=Group,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Compressed gradient exchange for distributed training on ordinary Ethernet.

[bold]Start here[/bold]
  gradwire doctor                               what was found on this machine, and what to do next
  gradwire run -n 2 python train.py             start two workers; Ctrl-C ends all of them
  gradwire ab -n 2 --arm none --arm int8 --report report -- python train.py
                                                what compression gains and costs on your own job
  gradwire codecs                               how to write a codec

Run gradwire COMMAND --help for the options and examples of a command.""",
)

# What typer raises for a wrong command line: click's base class of such errors, click's copy in typer, or typer's own,
# by the version. It is the first class below BadParameter that can write itself.
CommandLineError: Any = next(
    kind for kind in reversed(typer.BadParameter.__mro__) if hasattr(kind, "format_message")
)

# NumPy's generators take seeds below 2^32: a first seed up to here leaves room for the seeds that follow it.
_MOST_FIRST_SEED = 2**31 - 1

# Options end at the first word that is not one: the rest is the user's command, options of its own included.
_TAKES_COMMAND = {"allow_interspersed_args": False}
_TAKES_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from gradwire.terminal.machine import gradwire_version

        print(f"gradwire {gradwire_version()}")
        raise typer.Exit


@app.callback()
def gradwire(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def _check_target(target: float | None) -> float | None:
    if target is not None and not math.isfinite(target):
        raise typer.BadParameter(f"{target} is not a target: expected an accuracy from 0 to 1, or a loss")
    return target


app.command(cls=Command, rich_help_panel=_TRAIN, context_settings=_TAKES_COMMAND | ALIASES)(run)


@app.command(cls=Command, rich_help_panel=_TRAIN)
def key(json_file: SecretJsonOption = None) -> None:
    """Print a new job key: the secret of an encrypted job that torchrun or another launcher starts.

    gradwire run makes a key by itself. Under other launchers, all processes of the job need the same key in
    GRADWIRE_JOB_KEY. Whoever has the key can join the job, so keep it in a file that only you can read.

    [bold]Examples[/bold]
      (umask 077; gradwire key > ~/.job-key)             once
      export GRADWIRE_JOB_KEY=$(cat ~/.job-key)          on every node, before torchrun
    """
    from gradwire.settings import encryption

    made = encryption.new_key()
    if json_file is None:
        sys.stdout.write(f"{made.text}\n")
    write_secret_json({"key": made.text}, json_file)


@app.command(cls=Command, rich_help_panel=_COMPARE, context_settings=_TAKES_COMMAND)
def ab(
    command: Annotated[
        list[str], typer.Argument(metavar="CMD...", help="Program and arguments of every worker.")
    ],
    workers: Annotated[
        int,
        typer.Option(
            "-n", "--num-workers", metavar="N", min=1, max=MOST_PROCESSES, help="Number of workers."
        ),
    ],
    report: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder for the report: DIR/index.html, and the logs of all runs.",
            callback=check_report,
        ),
    ],
    arms: Annotated[
        list[str],
        typer.Option(
            "--arm",
            metavar="CODEC",
            help="Codec to compare, such as 2bit:threshold=auto, or auto. Give one --arm for each codec. The first is "
            "the baseline. `gradwire codecs` lists all codecs.",
            autocompletion=codec_listing.names,
        ),
    ],
    servers: Annotated[
        int | None,
        typer.Option(
            "-s",
            "--num-servers",
            metavar="N",
            min=0,
            max=MOST_PROCESSES,
            help="Number of servers. Default: one per worker.",
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST_REPETITIONS,
            help="Runs of each arm. Each run has a seed of its own. Default: 3.",
        ),
    ] = 3,
    first_seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=_MOST_FIRST_SEED,
            help="First seed. The others follow it. Use seeds that were not used before to confirm a result. "
            "Default: 0.",
        ),
    ] = 0,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Rate of each worker's and server's link, such as 100mbit. Needs root. Default: loopback, not "
            "limited.",
            callback=check_rate,
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Accuracy (0 to 1) or loss for time-to-accuracy. Default: one that all arms reach; the report says "
            "which.",
            callback=_check_target,
        ),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Train the same job under several codecs, and report what each gains and costs.

    CMD reads its codec from GRADWIRE_COMPRESSION and its seed from GRADWIRE_SEED. gradwire's stores read the first
    by themselves. CMD writes its result to the file in GRADWIRE_RESULT, with two lines:
      import gradwire.result
      gradwire.result.write(accuracy_per_epoch=accuracies)   # or loss_per_epoch=losses
    gradwire measures bytes, codec seconds and images per second itself, if the script does not give them. With
    gradwire.result.progress(share_done, accuracy=...) in its loop, a script also shows how far it is.

    A run that fails, or whose loss is NaN or infinite, affects its own arm only. The report and the record are
    written after each run, so Ctrl-C keeps the runs that have ended. The exit code is that of the first failed run.

    [bold]Examples[/bold]
      gradwire ab -n 2 --arm none --arm int8 --report report -- python train.py
      gradwire ab -n 2 --arm none --arm 2bit --bandwidth 100mbit --report report -- python train.py
      gradwire ab -n 2 --arm none --arm 2bit --first-seed 3 --report confirmed -- python train.py
    """
    from gradwire.ab.command import run_experiment
    from gradwire.ab.experiment import Plan
    from gradwire.launch.console import say
    from gradwire.terminal.plain_console import lasting_console

    chosen = tuple(range(first_seed, first_seed + seeds))
    plan = Plan(tuple(command), tuple(arms), chosen, workers, servers, bandwidth, report)
    ended = run_experiment(plan, target, json_file, lasting_console(json_file))
    if ended.exit_code:
        say(f"ab: {ended.cause}")
        raise typer.Exit(ended.exit_code)


app.command(cls=Command, rich_help_panel=_COMPARE, context_settings=_TAKES_COMMAND)(tune)
app.command(cls=Command, rich_help_panel=_MEASURE, context_settings=_TAKES_COMMAND)(plan)


@app.command(cls=Command, rich_help_panel=_INSPECT)
def doctor(json_file: JsonOption = None) -> None:
    """Show what was found on this machine, what is missing, every setting, and what to do next.

    A setting's value is shown with the variable or file that gave it. The exit code is 1 if something must be
    corrected before a job can run.

    [bold]Examples[/bold]
      gradwire doctor
      gradwire doctor --json - | python -m json.tool
    """
    from gradwire.doctor import examine, show
    from gradwire.terminal.plain_console import plain_console

    finding = examine()
    write_json(finding.record(), json_file)
    if json_file != "-":
        show(finding, plain_console())
    raise typer.Exit(1 if finding.faults else 0)


@app.command(cls=Command, rich_help_panel=_INSPECT)
def codecs(
    codec: Annotated[
        str | None,
        typer.Argument(
            metavar="[CODEC]",
            help="Explain the parameters of this codec, such as 2bit, int8:block=1024 or auto. Default: list all "
            "codecs.",
            autocompletion=codec_listing.names,
        ),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """List the codecs: bits an element, parameters with defaults, and how to write a codec.

    "bits an element" is what a worker sends, divided by the number of elements of the gradient, under the
    defaults. An uncompressed element has 32 bits. "exact sums" says whether servers can send the sum of what workers
    sent without rounding it again. A CODEC with parameters is described with the bits under these parameters.

    [bold]Examples[/bold]
      gradwire codecs
      gradwire codecs 2bit                           what its parameters mean
      gradwire codecs int8:block=1024                bits an element with this block
      gradwire codecs --json -
    """
    from gradwire.terminal.plain_console import plain_console

    codec_listing.list_codecs(codec, json_file, plain_console())


@app.command(cls=Command, rich_help_panel=_INSPECT)
def timeline(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Trace that `gradwire run --timeline FILE` wrote, or the folder that GRADWIRE_TIMELINE named.",
        ),
    ],
    step: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Show this step. Default: the mean of all steps but the first."
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the step to FILE as SVG, with a lane for each stage of each rank. Default: no drawing.",
            callback=check_output,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Merge a folder of traces into FILE, which Perfetto can open. Default: nothing is written.",
            callback=check_output,
        ),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Show where the time of a traced step went.

    A [bold]step[/bold] ends when a key is pushed again. [bold]exposed[/bold]: the time in which the caller was blocked
    until sums arrived. [bold]compute[/bold]: the rest of the step. [bold]communication[/bold]: the time in which at
    least one partition was in flight. [bold]hidden[/bold]: the part of it in which nobody waited.

    The stages of a partition on its worker are ready (pushed, not begun), encode, queue (until priority and credit
    allow it), send, receive, decode. On its server they are receive, sum, reply encode, reply queue, reply send. For
    each stage, "seconds" adds up all spans, and "busy" is the time in which at least one span was open.

    The mean leaves out the first step, which declares keys and sends float32 under many codecs. Its time is shown
    apart. Ranks compare their clocks at the beginning and at the end, so the spans of all ranks share one time axis.

    FILE opens at https://ui.perfetto.dev, with a process for each rank, a thread for each stage, and arrows from
    pushes to sums to replies. Without gradwire run, set GRADWIRE_TIMELINE to a folder that all ranks share.

    [bold]Examples[/bold]
      gradwire run -n 2 -s 2 --timeline out.json python train.py
      gradwire timeline out.json
      gradwire timeline out.json --step 12 --svg step12.svg
      GRADWIRE_TIMELINE=parts torchrun --nproc-per-node 4 train.py; gradwire timeline parts --out out.json
    """
    from gradwire.terminal.plain_console import plain_console
    from gradwire.timeline import command, picture
    from gradwire.timeline.summary import summarise
    from gradwire.timeline.trace_event import write_trace

    loaded = command.load(file)
    summary = summarise(loaded, step)
    if svg is not None:
        svg.write_text(picture.draw(loaded, step), encoding="utf-8")
    if out is not None:
        write_trace(loaded, out)
    write_json(summary.record(), json_file)
    if json_file != "-":
        command.show(summary, plain_console())


@app.command(cls=Command, rich_help_panel=_INSPECT)
def version(json_file: JsonOption = None) -> None:
    """Print the version.

    [bold]Examples[/bold]
      gradwire version
      gradwire version --json -
    """
    from gradwire.terminal.machine import gradwire_version

    if json_file != "-":
        print(gradwire_version())
    write_json({"version": gradwire_version()}, json_file)


def _mount(module: str, name: str, **shown: Any) -> None:
    """Adds the command group of a part of gradwire. A part that is not installed, or cannot be loaded, must not break
    the others: --help, version, and doctor, which says why."""
    if importlib.util.find_spec(module) is None:
        return
    try:
        group = importlib.import_module(module).app
    except ImportError as error:
        if not _is_of_the_core(error):
            raise
        app.command(name, hidden=True, context_settings=_TAKES_ANYTHING)(_unavailable(error))
        return
    app.add_typer(group, name=name, **shown)


def _is_of_the_core(error: ImportError) -> bool:
    """Whether the compiled part cannot be loaded, or is not there."""
    is_missing = error.name == "gradwire" and "'_core'" in str(error)
    return is_missing or error.name in ("_core", "gradwire._core")


def _unavailable(error: ImportError) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


_mount("gradwire.bench", "bench", rich_help_panel=_MEASURE)
_mount("gradwire.netlab", "netlab", hidden=True)  # what ab, tune and bench stand on with --bandwidth

_NO_COMMAND = re.compile(r"No such command '(.*?)'")


def _explain_misuse(error: Any) -> str:
    """Writes a usage error as one line that names what was meant, if that is plain, and where to read on."""
    context = getattr(error, "ctx", None)
    text = _with_the_value(error.format_message(), error).replace("\n", " ").rstrip(".?")
    if context is None:
        return f"{text}. See: gradwire --help"
    see = f"See: {context.command_path} --help"
    if (unknown := _NO_COMMAND.match(error.message)) is not None:
        names = public_commands(context)
        synonym = _SYNONYMS.get(unknown[1], "") if context.parent is None else ""
        meant = synonym if synonym in names else nearest(unknown[1], names)
        said = f"no such command {unknown[1]!r}"
        if meant:
            return f"{said}: did you mean {meant}? {see}"
        return f"{said}: expected one of {', '.join(names)}. {see}"
    if (option := getattr(error, "option_name", None)) is not None and text.startswith("No such option"):
        options = public_options(context)
        synonyms = [name for name in _OPTION_SYNONYMS.get(option, ()) if name in options]
        meant = synonyms[0] if synonyms else nearest(option, options)
        if meant:
            return f"No such option: {option}: did you mean {meant}? {see}"
        if any(param.metavar in COMMAND_ARGUMENTS for param in context.command.params):
            return f"No such option: {option}; options of your own program stand behind its name. {see}"
        return f"No such option: {option}. {see}"
    return f"{text}? {see}" if "did you mean" in text.lower() else f"{text}. {see}"


def _with_the_value(text: str, error: Any) -> str:
    """Puts what was given in place of typer's word for it. Versions with pydantic say "Input should be a valid
    integer"; older ones name the value themselves."""
    refused = getattr(error.__cause__, "errors", None)  # where that is pydantic's ValidationError
    return text if refused is None else text.replace("Input", repr(refused()[0]["input"]), 1)


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line. Exit codes: 2 for misuse, 1 for other failures, a job's own for a job."""
    from gradwire.launch.console import say

    words = sys.argv[1:] if arguments is None else arguments
    sys.stdout = sys.stdout or _nowhere()  # None where a daemon or a shell's >&- has closed it
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # a job's output must not fail on a terminal that lacks a sign
    try:
        code = app(words, prog_name="gradwire", standalone_mode=False)
    except CommandLineError as error:
        say(_explain_misuse(error))
        code = error.exit_code
    except ImportError as error:
        if not _is_of_the_core(error):
            raise
        from gradwire.doctor import core_fault

        say(core_fault(error))
        code = 1
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        if os.environ.get("GRADWIRE_LOG_LEVEL") == "debug":
            raise
        text = str(error)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            text = f"the output of this command cannot be written ({error.strerror}): free some space"
        if isinstance(error, MemoryError):
            text = f"this machine has too little memory for that ({error}): give smaller numbers"
        say(text)
        code = 2 if isinstance(error, ValueError) else getattr(error, "exit_code", 1)
    sys.exit(code)


if __name__ == "__main__":
    main()
