"""`gradwire ab` on a terminal: progress while it runs, then the headline, a table, what to conclude, and the page."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradwire.ab.conclusions import baseline, basis, write_target
from gradwire.ab.experiment import (
    UNSHAPED,
    Conditions,
    Interrupted,
    Plan,
    Run,
    RunFailed,
    check_arms,
    network,
    run_plan,
)
from gradwire.ab.names import link_name
from gradwire.ab.progress_view import ProgressView
from gradwire.ab.report import summary_rows, write_page
from gradwire.ab.summary import Outcome, summarise
from gradwire.launch.programs import refuse_launcher, require_program
from gradwire.launch.supervisor import check_job
from gradwire.terminal.help_page import MISUSE
from gradwire.terminal.json_option import write_json
from gradwire.terminal.machine import gradwire_version, machine_description

_GIVES_RESULT = re.compile(r"GRADWIRE_RESULT|gradwire\.result|gradwire import .*\bresult\b|\bgw\.result")


@dataclass(frozen=True)
class Ended:
    """An experiment that has ended.

    Attributes:
        exit_code: 0, or that of the first run that failed, or 128 and the signal that came, or MISUSE; or 1, where the
            page or the record could not be written.
        cause: why exit_code is not 0.
    """

    outcome: Outcome
    exit_code: int = 0
    cause: str = ""


@dataclass(frozen=True)
class _Written:
    """What has become of the results so far. lost: what could not be written, and why; page: None: it is lost."""

    outcome: Outcome
    page: Path | None
    lost: tuple[str, ...]


def _written(
    outcome: Outcome, report: Path, facts: Mapping[str, str], warning: str | None, json_file: str | None
) -> _Written:
    """Writes the page and the record. One that cannot be written costs itself alone."""
    page, lost = None, []
    try:
        page = write_page(report, outcome, facts, warning)
    except OSError as error:
        lost.append(str(error))
    try:
        write_json(outcome.record(), json_file)
    except OSError as error:
        lost.append(str(error))
    return _Written(outcome, page, tuple(lost))


def run_experiment(plan: Plan, target: float | None, json_file: str | None, console: Console) -> Ended:
    """Runs plan, and shows progress and results on console.

    The page and the record are written after each run. So if this process is ended, the results so far are kept. Where
    they cannot be written, the runs go on, and the results are shown at the end.

    Args:
        target: None: one that all arms reach (target.common_target). Where runs write accuracies and this is none,
            the experiment ends after the first of them.
        json_file: where the record goes, as in JsonOption. "-" is stdout, which gets one record at the end.

    Raises:
        ValueError: an arm is not a codec, or a setting in the environment is not valid.
        OSError: a program is missing.
    """
    check_arms(plan.arms)
    require_program("ab", plan.command)
    if plan.workers > 1:
        refuse_launcher("ab", plan.command)
    check_job(plan.command, plan.workers, plan.servers)
    started_at = time.strftime("%Y-%m-%d %H:%M:%S %z")
    begin = time.monotonic()
    servers = plan.workers if plan.servers is None else plan.servers
    expected = len(plan.arms) * len(plan.seeds)
    machine = ", ".join(f"{name} {value}" for name, value in machine_description().items())
    ended: list[Run | RunFailed] = []
    interrupted: Interrupted | None = None
    misuse: str | None = None
    told: set[str] = set()
    with network(plan) as conditions:
        warning = _warning(plan, conditions)

        def write() -> _Written:
            outcome = summarise(ended, plan.arms, target, conditions.link, expected)
            facts = {
                "command": shlex.join(["gradwire", *sys.argv[1:]]),
                "workers, servers": f"{plan.workers}, {servers}",
                "link": _describe_link(conditions),
                "seeds": ", ".join(map(str, plan.seeds))
                + "; arms run one after the other, in an order that rotates from seed to seed",
                "machine": machine,
                "started": f"{started_at}, {time.monotonic() - begin:.0f} s in all",
                "gradwire": gradwire_version(),
            }
            if (said := baseline(ended, plan.workers, servers)) is not None:
                facts["baseline"] = said
            return _written(outcome, plan.report, facts, warning, None if json_file == "-" else json_file)

        for note in filter(None, (warning, _lacks_result(plan.command))):
            console.print(Text(f"NOTE: {note}", style="bold yellow"))
        with ProgressView(console, plan.arms, len(plan.seeds)) as view:
            try:
                for run in run_plan(plan, conditions, view):
                    ended.append(run)
                    if misuse := _refuse_target(target, run):
                        target = None
                        break
                    for text in write().lost:
                        if text not in told:  # a run is worth more than its files, which are tried again
                            told.add(text)
                            console.print(Text(f"NOTE: {text}; the runs go on", style="bold yellow"))
            except Interrupted as stopped:
                interrupted = stopped
            except KeyboardInterrupt:  # between two runs
                interrupted = Interrupted("stopped by SIGINT", 128 + signal.SIGINT)
    written = write()
    outcome = written.outcome
    show(outcome, written.page, console, baseline(ended, plan.workers, servers))
    if json_file == "-":
        write_json(outcome.record(), json_file)
    if interrupted is not None:
        return Ended(outcome, interrupted.exit_code, "; ".join([str(interrupted), *written.lost]))
    if misuse:
        return Ended(outcome, MISUSE, misuse)
    return _ended_by_itself(written, ended, expected)


def _ended_by_itself(written: _Written, ended: Sequence[Run | RunFailed], expected: int) -> Ended:
    outcome = written.outcome
    if written.lost:
        return Ended(outcome, 1, "; ".join(written.lost))
    failures = [run for run in ended if isinstance(run, RunFailed)]
    if not failures:
        return Ended(outcome)
    more = f" ({len(failures)} of {expected} runs failed)"
    if len(ended) < expected:
        more = f" (runs that were not tried: {expected - len(ended)}; the command itself is at fault)"
    return Ended(outcome, failures[0].exit_code, f"{failures[0]}{more}")


def _warning(plan: Plan, conditions: Conditions) -> str | None:
    if conditions.reason is None:
        return None
    return (
        f"the link is NOT shaped to {plan.bandwidth}: {conditions.reason}. All processes share one "
        "loopback interface, so times say nothing about a slow network. Accuracy and bytes are not affected."
    )


def _refuse_target(target: float | None, run: Run | RunFailed) -> str | None:
    """Says why no run can reach the target, which shows once a run has said what it measures. None: one can."""
    if target is None or isinstance(run, RunFailed) or run.result.metric == "loss" or 0 <= target <= 1:
        return None
    return (
        f"--target {target:g} is outside 0 to 1, and the command writes accuracies: give a fraction, such as 0.9. The "
        "report keeps what has run"
    )


def _lacks_result(command: Sequence[str]) -> str | None:
    """Says that a script does not mention what a run must write, which else shows after the whole first run."""
    script = next((Path(word) for word in command if word.endswith(".py")), None)
    try:
        text = "" if script is None else script.read_text(encoding="utf-8", errors="replace")
    except OSError:  # the run will say so
        return None
    if script is None or _GIVES_RESULT.search(text):
        return None
    return (
        f"{script} does not mention gradwire.result. If nothing that it imports calls gradwire.result.write("
        "accuracy_per_epoch=[...]) or (loss_per_epoch=[...]), the first run will fail at its end."
    )


def _describe_link(conditions: Conditions) -> str:
    if conditions.link == UNSHAPED:
        return "not shaped: loopback of one machine"
    rate = link_name(conditions.link)
    return (
        f"{rate} each way; each worker and server has its own rate-limited virtual link, all on one machine"
    )


def show(outcome: Outcome, page: Path | None, console: Console, said_of_baseline: str | None = None) -> None:
    """Writes the headline, the table, what to conclude, and where the page is, if there is one."""
    titles, rows = summary_rows(outcome)
    table = Table(box=SIMPLE_HEAD, title=basis(outcome), title_justify="left", title_style="dim")
    table.add_column(titles[0])
    for arm in rows:  # one column per arm, which fits 80 characters
        table.add_column(arm[0], justify="right", overflow="fold")
    for index, title in enumerate(titles[1:], start=1):
        cells = [arm[index] for arm in rows]
        if any(cell != "-" for cell in cells):
            table.add_row(title, *cells)
    console.print()
    console.print(Text(outcome.headline, style="bold"))
    console.print(table)
    width = min(console.width, 100)
    for text in outcome.conclusions:
        lines = textwrap.fill(
            text, width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
        )
        console.print(Text(lines), soft_wrap=True)
    if said_of_baseline is not None:
        console.print(Text(f"baseline: {said_of_baseline}", style="dim"))
    console.print(Text(f"target: {write_target(outcome)}, {outcome.target_reason}", style="dim"))
    if page is not None:
        console.print(f"report: {page}", highlight=False, soft_wrap=True)
