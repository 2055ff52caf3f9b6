"""The `gradwire` command: reads options, calls what does the work, writes errors as one clean line."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from gradwire.autotune.command import tune
from gradwire.launch.command import ALIASES, run
from gradwire.plan.command import plan
from gradwire.settings.suggestions import did_you_mean
from gradwire.terminal.json_option import (
    JsonOption,
    SecretJsonOption,
    check_output,
    check_report,
    write_json,
    write_secret_json,
)

app = typer.Typer(
    name="gradwire",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Compressed gradient exchange for distributed training on ordinary Ethernet.

[bold]Start here[/bold]

  gradwire doctor
    what was found on this machine

  gradwire run -n 2 -s 2 python train.py --lr 0.1
    two workers and two servers; Ctrl-C ends all of them

  gradwire ab -n 2 --arm none --arm 2bit:threshold=auto --bandwidth 100mbit --report report -- python train.py
    what compression gains and costs on your own job

  gradwire run -n 2 -s 2 --timeline out.json python train.py && gradwire timeline out.json
    where a step's time went

  gradwire tune -n 2 -s 2 --json tuned.json -- python train.py
    settings under which your own job's steps are shorter

Each command explains itself: gradwire run --help.""",
)

# What typer raises for a wrong command line: click's base class of such errors, click's copy in typer, or typer's own,
# by the version. It is the first class below BadParameter that can write itself.
CommandLineError: Any = next(
    kind for kind in reversed(typer.BadParameter.__mro__) if hasattr(kind, "format_message")
)

# Options end at the first word that is not one: the rest is the user's command, options of its own included.
_TAKES_COMMAND = {"allow_interspersed_args": False}
_TAKES_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}


app.command(context_settings=_TAKES_COMMAND | ALIASES)(run)


@app.command()
def key(json_file: SecretJsonOption = None) -> None:
    """Print a new job key, for jobs that gradwire run does not start: all their processes must hold the same one.

    A secret: hand it over in the environment and by a way that nobody reads. gradwire run makes one by itself.

    [bold]Example[/bold], before torchrun on every node, from a file that only you can read:

      export GRADWIRE_JOB_KEY=$(cat ~/.job-key)
    """
    from gradwire.settings import encryption

    made = encryption.new_key()
    if json_file is None:
        sys.stdout.write(f"{made.text}\n")
    write_secret_json({"key": made.text}, json_file)


@app.command(context_settings=_TAKES_COMMAND)
def ab(
    command: Annotated[
        list[str], typer.Argument(metavar="CMD...", help="Program and arguments of every worker.")
    ],
    workers: Annotated[int, typer.Option("-n", "--num-workers", min=1, help="Workers.")],
    report: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for the page and the logs.", callback=check_report),
    ],
    arms: Annotated[
        list[str],
        typer.Option(
            "--arm", metavar="CODEC", help="A codec spec, or auto; repeat. The first is the baseline."
        ),
    ],
    servers: Annotated[
        int | None, typer.Option("-s", "--num-servers", min=0, help="Servers. Unset: as many as workers.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each arm, each with a seed of its own.")] = 3,
    first_seed: Annotated[
        int,
        typer.Option(
            min=0, help="The first seed; others follow it. Seeds not used before confirm an earlier result."
        ),
    ] = 0,
    bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Shape every host's link: 100mbit. Needs root.")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="Accuracy (or loss) to which time is taken. Unset: near the baseline's."),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Train the same job under several codecs and seeds, and say what each gains and costs.

    CMD finds its codec in GRADWIRE_COMPRESSION and its seed in GRADWIRE_SEED, and leaves its record in
    GRADWIRE_RESULT; two lines do that in any script:

      import gradwire.result

      gradwire.result.write(accuracy_per_epoch=accuracies)

    A run that fails, or whose loss is NaN or infinite, costs its own arm alone. The page and the record are written
    after each run, so Ctrl-C leaves those that have ended. Returns the exit code of the first run that failed, if any.

    [bold]Examples[/bold]

      gradwire ab -n 2 --arm none --arm 2bit --bandwidth 100mbit --report report -- python train.py

      gradwire ab -n 2 --arm none --arm 2bit --first-seed 3 --report confirmed -- python train.py
    """
    from rich.console import Console

    from gradwire.ab.command import run_experiment
    from gradwire.ab.experiment import Plan
    from gradwire.launch.console import say

    console = Console(stderr=json_file == "-")
    chosen = tuple(range(first_seed, first_seed + seeds))
    plan = Plan(tuple(command), tuple(arms), chosen, workers, servers, bandwidth, report)
    ended = run_experiment(plan, target, json_file, console)
    if ended.exit_code:
        say(f"ab: {ended.cause}")
        raise typer.Exit(ended.exit_code)


app.command(context_settings=_TAKES_COMMAND)(plan)
app.command(context_settings=_TAKES_COMMAND)(tune)


@app.command()
def timeline(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Written by gradwire run --timeline; or a folder of parts.")
    ],
    step: Annotated[
        int | None, typer.Option(min=0, help="Look at this one. Unset: the mean of all but the first.")
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw a step: a lane for each stage of each rank.", callback=check_output
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the trace of a folder of parts as one file.", callback=check_output
        ),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Say where the steps of a traced job went.

    A [bold]step[/bold] lasts until a key is pushed again. Of it, [bold]exposed[/bold] is when the caller was blocked
    and waited for sums, [bold]compute[/bold] the rest; [bold]communication[/bold] is when at least one partition was on
    its way, and [bold]hidden[/bold] the part of it that nobody waited for. A partition's stages on its worker are ready
    (given, not begun), encode, queue (until priority and credit let it go), send, receive, decode; on its server
    receive, sum, reply encode, reply queue, reply send. Of each: seconds of all spans together, and busy, when at
    least one lasted. The mean leaves out the first step, in which keys are declared and many codecs send float32; what
    it took is said apart. Clocks of all ranks are aligned, by asking each other the time at the beginning and the end.

    The file itself opens at https://ui.perfetto.dev: a process per rank, a thread per stage, arrows from pushes to
    sums to answers. Without gradwire run, set GRADWIRE_TIMELINE to a folder that all ranks share, and give that.

    [bold]Examples[/bold]

      gradwire run -n 2 -s 2 --timeline out.json python train.py

      gradwire timeline out.json

      gradwire timeline out.json --step 12 --svg step12.svg

      GRADWIRE_TIMELINE=parts torchrun --nproc-per-node 4 train.py; gradwire timeline parts --out out.json
    """
    from rich.console import Console

    from gradwire.timeline import command, picture
    from gradwire.timeline.summary import summarise
    from gradwire.timeline.trace_event import write_trace

    loaded = command.load(file)
    summary = summarise(loaded, step)
    if json_file != "-":
        command.show(summary, Console())
    if svg is not None:
        svg.write_text(picture.draw(loaded, step), encoding="utf-8")
    if out is not None:
        write_trace(loaded, out)
    write_json(summary.record(), json_file)


@app.command()
def doctor(json_file: JsonOption = None) -> None:
    """Show what was found here: parts, codecs, and every setting with where its value came from.

    Returns 1 when something has to be put right before a job can run.
    """
    from rich.console import Console

    from gradwire.doctor import examine, show

    finding = examine()
    if json_file != "-":
        show(finding, Console())
    write_json(finding.record(), json_file)
    raise typer.Exit(1 if finding.faults else 0)


@app.command()
def version(json_file: JsonOption = None) -> None:
    """Print the version."""
    from gradwire.terminal.machine import gradwire_version

    if json_file != "-":
        print(gradwire_version())
    write_json({"version": gradwire_version()}, json_file)


def _mount(module: str, name: str) -> None:
    """Adds the command group of a part of gradwire. One that is not installed, or cannot be loaded, must not cost the
    others: --help, version, and doctor, which says why."""
    if importlib.util.find_spec(module) is None:
        return
    try:
        group = importlib.import_module(module).app
    except ImportError as error:
        if not _is_of_the_core(error):
            raise
        app.command(name, hidden=True, context_settings=_TAKES_ANYTHING)(_unavailable(error))
        return
    app.add_typer(group, name=name)


def _is_of_the_core(error: ImportError) -> bool:
    return error.name in ("_core", "gradwire._core")  # that cannot be loaded, or is not there


def _unavailable(error: ImportError) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


_mount("gradwire.bench", "bench")
_mount("gradwire.netlab", "netlab")


def _command_names() -> list[str]:
    names = [
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    ]
    return names + [group.name for group in app.registered_groups if group.name]


def _explain_misuse(error: Any, words: list[str]) -> str:
    """Writes a usage error as one line that ends with where to read on."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "gradwire"
    text = error.format_message().replace("\n", " ").rstrip(".?")
    lists: Any = None if context is None else getattr(context.command, "list_commands", None)
    if not text and lists is not None:
        text = f"expected a command: {', '.join(lists(context))}"
    names = _command_names()
    if words and not words[0].startswith("-") and words[0] not in names:
        meant = did_you_mean(words[0], names).rstrip("?")
        text = f"no such command {words[0]!r}{meant or ': expected one of ' + ', '.join(names)}"
    return f"{text}? See: {path} --help" if "did you mean" in text.lower() else f"{text}. See: {path} --help"


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
        say(_explain_misuse(error, words))
        code = error.exit_code
    except ImportError as error:
        if not _is_of_the_core(error):
            raise
        from gradwire.doctor import core_fault

        say(core_fault(error))
        code = 1
    except (ValueError, OSError, RuntimeError) as error:
        if os.environ.get("GRADWIRE_LOG_LEVEL") == "debug":
            raise
        text = str(error)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            text = f"what this command writes has no place ({error.strerror})"
        say(text)
        code = 2 if isinstance(error, ValueError) else getattr(error, "exit_code", 1)
    sys.exit(code)


if __name__ == "__main__":
    main()
