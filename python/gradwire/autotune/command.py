"""The command `gradwire tune`: its options, live progress, then the verdict, the record and the page."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradwire.terminal.counts import MOST_PROCESSES, MOST_REPETITIONS
from gradwire.terminal.json_option import JsonOption, check_report, write_json
from gradwire.terminal.quantities import check_rate

if TYPE_CHECKING:
    from rich.console import Console

    from gradwire.ab.experiment import Conditions
    from gradwire.autotune.launches import Job
    from gradwire.autotune.search_space import Box
    from gradwire.autotune.summary import Outcome

_INTERRUPTED = 130


def tune(
    command: Annotated[
        list[str], typer.Argument(metavar="CMD...", help="Program and arguments of every worker.")
    ],
    workers: Annotated[
        int,
        typer.Option(
            "-n", "--num-workers", metavar="N", min=1, max=MOST_PROCESSES, help="Number of workers."
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
            help="Number of servers. Default: one per worker, which end quietly if the script's store needs none.",
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Rate of each worker's and server's link, such as 1gbit. Needs root. Default: loopback, not limited.",
            callback=check_rate,
            rich_help_panel="Network",
        ),
    ] = None,
    trials: Annotated[
        int,
        typer.Option(
            metavar="N", max=MOST_REPETITIONS, help="Most launches of the job; 20 or more. Default: 80."
        ),
    ] = 80,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=4,
            max=MOST_REPETITIONS,
            help="Steps to time in a launch. Default: as many as take 5 s, but 10 to 40.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for a page with a chart of all launches: DIR/index.html. Default: no page.",
            callback=check_report,
        ),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Find settings that make the steps of your job shorter: partition, credit, fusion, codec threads, streams.

    CMD is launched again and again. Each launch runs 5 steps that do not count, and then steps that are timed. A step
    is a step of a PyTorch optimizer. The script needs no change; what it does after training is not run.
      1. One launch under the defaults shows how long everything will take.
      2. With --bandwidth, the layers are timed in one worker, and the simulator of `gradwire plan` picks a start.
      3. Search: one knob after the other, settings race in alternating launches against the best so far.
      4. Duel: the best settings race the defaults in 7 pairs of launches, in alternating order.

    Settings are kept only if they are faster in every pair. Otherwise the next best race the defaults, up to three in
    all. If none wins, the defaults stay. By luck alone, one wins once in 128 times, and one of three once in 43.

    Ctrl-C stops everything at once and keeps what was found. Settings that the environment gives are not changed.
    Results keep their bits under all settings, except with codecs that draw random numbers (qsgd, terngrad, natural,
    randomk). These draw by key, and GRADWIRE_FUSION_BYTES decides which small tensors share a key. Another value gives
    other draws of the same distribution.

    The record of --json is a settings file, valid for this job on this network. Use it with `gradwire run --settings
    FILE`, or with GRADWIRE_SETTINGS=FILE under torchrun. Environment variables override it.

    [bold]Examples[/bold]
      gradwire tune -n 4 --json tuned.json -- python train.py
      gradwire run -n 4 --settings tuned.json python train.py
      gradwire tune -n 2 -s 2 --bandwidth 1gbit --trials 60 --report report/tune -- python train.py
    """
    from gradwire.autotune.launches import Job, LaunchFailed
    from gradwire.launch.console import say
    from gradwire.terminal.plain_console import lasting_console, plain_console

    job = Job(tuple(command), workers, servers, bandwidth)
    is_kept = json_file is not None or report is not None
    console = lasting_console(json_file) if is_kept else plain_console(json_file)
    try:
        outcome, facts = _run(job, trials, steps, console)
    except LaunchFailed as failure:
        for line in failure.last_lines:
            console.print(f"  | {line}", style="dim", highlight=False, soft_wrap=True)
        say(str(failure))
        raise typer.Exit(failure.exit_code) from None
    record = outcome.record() | facts
    page = None
    try:
        write_json(record, json_file)
        if report is not None:
            from gradwire.autotune.page import write_page

            page = write_page(report, outcome, facts, record)
    finally:  # a file that cannot be written costs itself alone
        _show(outcome, json_file, console)
    if page is not None:
        console.print(f"report: {page}", highlight=False, soft_wrap=True)
    if outcome.search.is_interrupted:
        raise typer.Exit(_INTERRUPTED)


def _run(job: Job, trials: int, steps: int | None, console: Console) -> tuple[Outcome, dict[str, str]]:
    """Returns what was found, and how it was done."""
    from gradwire.ab.experiment import network
    from gradwire.autotune.launches import Launcher
    from gradwire.autotune.search import require_enough
    from gradwire.autotune.session import Session
    from gradwire.autotune.view import View
    from gradwire.launch.supervisor import check_job
    from gradwire.terminal.machine import gradwire_version, machine_description

    require_enough(trials)
    check_job(job.command, job.workers, job.servers)
    box, fixed = _box()
    started_at, began = time.strftime("%Y-%m-%d %H:%M:%S %z"), time.monotonic()
    with network(job) as conditions, View(console, box) as view:
        session = Session(Launcher(job, box, conditions, view.line), trials, steps, view)
        session.notes += _notes(job, conditions, fixed)
        for note in session.notes:
            view.says(f"NOTE: {note}")
        outcome = session.run()
    return outcome, {
        "command": shlex.join(["gradwire", *sys.argv[1:]]),
        "workers, servers": f"{job.workers}, {'as many, if used' if job.servers is None else job.servers}",
        "link": conditions.link,
        "steps": f"{session.steps} of each launch",
        "machine": ", ".join(f"{name} {value}" for name, value in machine_description().items()),
        "started": f"{started_at}, {time.monotonic() - began:.0f} s in all",
        "gradwire": gradwire_version(),
    }


def _box() -> tuple[Box, Mapping[str, str]]:
    """Returns what is searched, and the settings that the environment gives, with the variable that does."""
    from gradwire.autotune import search_space
    from gradwire.settings import definitions as settings

    rows = settings.resolve()
    file = next(row.value for row in rows if row.definition.name == "settings")
    given = {row.definition.name: row.origin for row in rows if row.origin not in ("default", file)}
    fixed = {
        knob.name: given[knob.name] for knob in search_space.of_this_machine().knobs if knob.name in given
    }
    return search_space.of_this_machine(fixed), fixed


def _notes(job: Job, conditions: Conditions, fixed: Mapping[str, str]) -> list[str]:
    notes = [f"{origin} is set, so {name} is left as it is" for name, origin in fixed.items()]
    if conditions.reason is not None:
        notes.append(
            f"the link is NOT shaped to {job.bandwidth}: {conditions.reason}. What is found holds for this machine's "
            "loopback"
        )
    return notes


def _show(outcome: Outcome, json_file: str | None, console: Console) -> None:
    """Writes the verdict and how to use what was found."""
    console.print(outcome.verdict, style="bold", highlight=False)
    found = outcome.search.found
    if outcome.search.won is None:
        return
    box = outcome.search.box
    changed = box.changes(found)
    if json_file not in (None, "-"):
        use = f"gradwire run --settings {shlex.quote(json_file)} ..."
        console.print(f"use it: {use}", highlight=False, soft_wrap=True)
        return
    variables = [f"{name}={text}" for name, text in box.environment(found).items()]
    own = [text for text, knob in zip(variables, box.knobs, strict=True) if knob.name in changed]
    console.print(
        f"use it: {' '.join(own)} (--json FILE writes it for gradwire run --settings)", soft_wrap=True
    )
