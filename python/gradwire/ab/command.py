"""`gradwire ab` on a terminal: live progress, then one table, the verdict and the page's path."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

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
from gradwire.ab.report import summary_rows, write_page
from gradwire.ab.summary import Outcome, summarise
from gradwire.launch.job import require_program
from gradwire.launch.progress import LiveJob
from gradwire.launch.supervisor import check_job
from gradwire.terminal.json_option import write_json
from gradwire.terminal.machine import gradwire_version, machine_description


class ProgressView(LiveJob):
    """Shows a bar, the arm and seed under way, and rank 0's last line. On a plain stream: a line per run."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console, "runs", total)

    def started(self, arm: str, seed: int) -> None:
        self.begin(f"{arm}, seed {seed}")
        if not self.is_live:
            self.console.print(f"{arm}, seed {seed} ...", highlight=False)

    def finished(self, run: Run) -> None:
        self.advance()
        value = (
            f"{100 * run.result.final:.2f} %"
            if run.result.metric == "accuracy"
            else f"{run.result.final:.4g}"
        )
        if run.result.diverged:
            value = f"{run.result.final:.4g}, diverged"
        speed = run.result.images_per_second
        images = f", {speed:.0f} images/s" if speed is not None else ""
        text = f"{run.arm}, seed {run.seed}: {run.result.metric} {value}{images}, {run.wall_seconds:.1f} s"
        self.console.print(text, highlight=False)

    def failed(self, failure: RunFailed) -> None:
        self.advance()
        show_failure(failure, self.console)
        self.console.print(Text(f"{failure}: failed", style="bold"), soft_wrap=True)


@dataclass(frozen=True)
class Ended:
    """An experiment that has ended. exit_code: 0, or that of the first run that failed, or of the signal that came.

    cause: of an exit_code that is not 0.
    """

    outcome: Outcome
    exit_code: int = 0
    cause: str = ""


def run_experiment(plan: Plan, target: float | None, json_file: str | None, console: Console) -> Ended:
    """Runs plan, and shows the table and verdict on console.

    The page and the record are written after each run: what ends this process leaves the runs that had ended.

    Args:
        json_file: as JsonOption has it. stdout gets one record, at the end.

    Raises:
        ValueError: an arm is no codec, or a setting of the environment is bad.
        OSError: a program is not there.
    """
    check_arms(plan.arms)
    require_program("ab", plan.command)
    check_job(plan.command, plan.workers, plan.servers)
    started_at = time.strftime("%Y-%m-%d %H:%M:%S %z")
    begin = time.monotonic()
    expected = len(plan.arms) * len(plan.seeds)
    machine = ", ".join(f"{name} {value}" for name, value in machine_description().items())
    ended: list[Run | RunFailed] = []
    interrupted: Interrupted | None = None
    with network(plan) as conditions:
        warning = _warning(plan, conditions)

        def write() -> tuple[Outcome, Path]:
            outcome = summarise(ended, plan.arms, target, conditions.link, expected)
            facts = {
                "command": shlex.join(["gradwire", *sys.argv[1:]]),
                "workers, servers": f"{plan.workers}, {plan.workers if plan.servers is None else plan.servers}",
                "link": _describe_link(conditions),
                "seeds": ", ".join(map(str, plan.seeds))
                + "; arms interleaved, order rotated from seed to seed",
                "machine": machine,
                "started": f"{started_at}, {time.monotonic() - begin:.0f} s in all",
                "gradwire": gradwire_version(),
            }
            page = write_page(plan.report, outcome, facts, warning)
            if json_file != "-":
                write_json(outcome.record(), json_file)
            return outcome, page

        if warning:
            console.print(Text(f"NOTE: {warning}", style="bold yellow"))
        with ProgressView(console, expected) as view:
            try:
                for run in run_plan(plan, conditions, view):
                    ended.append(run)
                    write()
            except Interrupted as stopped:
                interrupted = stopped
            except KeyboardInterrupt:  # between two runs
                interrupted = Interrupted("stopped by SIGINT", 128 + signal.SIGINT)
    outcome, page = write()
    show(outcome, page, console)
    if json_file == "-":
        write_json(outcome.record(), json_file)
    if interrupted is not None:
        return Ended(outcome, interrupted.exit_code, str(interrupted))
    failures = [run for run in ended if isinstance(run, RunFailed)]
    if failures:
        more = f" ({len(failures)} of {expected} runs failed)"
        if len(ended) < expected:
            more = f" (every arm failed under seed {plan.seeds[0]}: no other seed was tried)"
        return Ended(outcome, failures[0].exit_code, f"{failures[0]}{more}")
    return Ended(outcome)


def _warning(plan: Plan, conditions: Conditions) -> str | None:
    if conditions.reason is None:
        return None
    return (
        f"the link is NOT shaped to {plan.bandwidth}: {conditions.reason}. All processes share one "
        "loopback, so speeds say nothing about a slow network; accuracy and bytes are not affected."
    )


def _describe_link(conditions: Conditions) -> str:
    if conditions.link == UNSHAPED:
        return "unshaped: loopback of one machine"
    return f"{conditions.link} each way at every worker and server, each in a network namespace of its own"


def show(outcome: Outcome, page: Path, console: Console) -> None:
    """Writes the table, the verdict and where the page is."""
    titles, rows = summary_rows(outcome)
    table = Table(box=SIMPLE_HEAD, title=f"link: {outcome.link}", title_justify="left", title_style="dim")
    table.add_column(titles[0])
    for arm in rows:  # an arm is a column: this fits 80 characters
        table.add_column(arm[0], justify="right", overflow="fold")
    for index, title in enumerate(titles[1:], start=1):
        cells = [arm[index] for arm in rows]
        if any(cell != "-" for cell in cells):
            table.add_row(title, *cells)
    console.print(table)
    console.print(Text(outcome.verdict, style="bold"))
    console.print(f"report: {page}", highlight=False, soft_wrap=True)


def show_failure(failure: RunFailed, console: Console) -> None:
    """Writes the last lines of the process at fault."""
    for line in failure.last_lines:
        console.print(Text(f"  | {line}", style="dim"), soft_wrap=True)
