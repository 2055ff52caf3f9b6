"""The command `gradwire tune`: its options, live progress, then the verdict, the record and the page."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradwire.terminal.json_option import JsonOption, check_report, write_json

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
    workers: Annotated[int, typer.Option("-n", "--num-workers", min=1, help="Workers.")],
    servers: Annotated[
        int | None,
        typer.Option("-s", "--num-servers", min=0, help="Servers. Unset: as many as workers, if used."),
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Shape every host's link: 1gbit. Needs root.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Launches to make at most; 20 or more.")] = 80,
    steps: Annotated[
        int | None,
        typer.Option(min=4, help="Steps to time in a launch. Unset: 5 s of them, but 10 to 40."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write a page with a chart of all launches there.", callback=check_report
        ),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Find settings under which a job's own steps are shorter: partition, credit, fusion, codec threads, streams.

    CMD is launched again and again, for 5 steps that do not count and then some that do (of a PyTorch optimizer; the
    script needs no change, and what it does after training is not run). What happens:

    1. One launch under the defaults. It tells how long all will take.

    2. With --bandwidth, the layers are timed in one worker, and the simulator of `gradwire plan` says where to begin.

    3. Search: settings race, launch by launch in turns, each against the best so far; one knob after the other.

    4. Duel: the best fights the defaults, in 7 pairs of launches, who goes first alternating. It is kept only if it is
    faster in each of them; else the next best fights, up to three in all, and if none wins the defaults stay. By luck
    alone one wins once in 128 times, and so one of three once in 43.

    Ctrl-C stops everything at once and keeps what was found. Settings that the environment gives already are left as
    they are. No setting changes a bit of the result, as units of codecs do not depend on them. The exception are codecs
    that draw random numbers (qsgd, terngrad, natural, randomk): these draw by key, and GRADWIRE_FUSION_BYTES says which
    small tensors share one. Another value of it gives other draws, of the same distribution.

    The record of --json is a settings file: `gradwire run --settings FILE`, or GRADWIRE_SETTINGS=FILE under torchrun
    and others. What the environment says wins over the file. It holds for this job on this network, and no other.

    [bold]Examples[/bold]

      gradwire tune -n 4 --json tuned.json -- python train.py

      gradwire run -n 4 --settings tuned.json python train.py

      gradwire tune -n 2 -s 2 --bandwidth 1gbit --trials 60 --report report/tune -- python train.py
    """
    from rich.console import Console

    from gradwire.autotune.launches import Job, LaunchFailed
    from gradwire.launch.console import say
    from gradwire.settings.units import parse_rate

    if bandwidth is not None:
        parse_rate(bandwidth)
    job = Job(tuple(command), workers, servers, bandwidth)
    console = Console(stderr=json_file == "-")
    try:
        outcome, facts = _run(job, trials, steps, console)
    except LaunchFailed as failure:
        for line in failure.last_lines:
            console.print(f"  | {line}", style="dim", markup=False, highlight=False, soft_wrap=True)
        say(str(failure))
        raise typer.Exit(failure.exit_code) from None
    record = outcome.record() | facts
    write_json(record, json_file)
    _show(outcome, json_file, console)
    if report is not None:
        from gradwire.autotune.page import write_page

        console.print(
            f"report: {write_page(report, outcome, facts, record)}", highlight=False, soft_wrap=True
        )
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
    console.print(outcome.verdict, style="bold", markup=False, highlight=False)
    found = outcome.search.found
    if outcome.search.won is None:
        return
    box = outcome.search.box
    changed = box.changes(found)
    if json_file not in (None, "-"):
        console.print(f"use it: gradwire run --settings {json_file} ...", highlight=False, soft_wrap=True)
        return
    variables = [f"{name}={text}" for name, text in box.environment(found).items()]
    own = [text for text, knob in zip(variables, box.knobs, strict=True) if knob.name in changed]
    console.print(
        f"use it: {' '.join(own)} (--json FILE writes it for gradwire run --settings)", soft_wrap=True
    )
