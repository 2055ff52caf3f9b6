"""A grid of trainings: rows, each a comparison of arms behind one link, which are measured one after the other.

A row that has ended replaces its record in results.json, so that a grid may be measured in parts.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.ab.command import show
from gradwire.ab.experiment import Interrupted, Plan, RunFailed, network, run_plan
from gradwire.ab.progress_view import ProgressView
from gradwire.ab.report import write_page
from gradwire.ab.summary import Outcome, summarise
from gradwire.launch.console import say
from gradwire.terminal.json_option import write_json
from gradwire.terminal.machine import gradwire_version, machine_description
from rich.console import Console

from training.near_target import first_finite, near_target

Record = dict[str, Any]
EXPERIMENTS = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Workload:
    """What is trained. script: below experiments/. whole, quick: its flags, the same for all arms."""

    script: str
    whole: str
    quick: str

    @property
    def path(self) -> str:
        return str(EXPERIMENTS / self.script)

    def flags(self, given: argparse.Namespace) -> list[str]:
        """Returns those of the form that --quick asks for."""
        return (self.quick if given.quick else self.whole).split()


@dataclass(frozen=True)
class Measured:
    """A row that has ended.

    Attributes:
        facts: how it was measured, for its record.
        warning: why its times say nothing; None: they do.
    """

    outcome: Outcome
    facts: dict[str, str]
    warning: str | None


def measure(plan: Plan, console: Console) -> Measured:
    """Runs a row, writes its page and shows its table.

    Raises:
        RunFailed: a run failed; nothing is left running.
        Interrupted: a signal came.
    """
    load, began = os.getloadavg()[0], time.monotonic()
    with network(plan) as conditions:
        warning = None
        if conditions.reason is not None:
            warning = f"the link is NOT shaped to {plan.bandwidth}, so times say nothing: {conditions.reason}"
            console.print(f"NOTE: {warning}", style="bold yellow")
        with ProgressView(console, plan.arms, len(plan.seeds)) as view:
            runs = []
            for run in run_plan(plan, conditions, view):
                if isinstance(run, RunFailed):
                    raise run
                runs.append(run)
    target, reason = None, "no run is finite"
    if finite := first_finite(runs, plan.arms):
        target, reason = near_target(finite)
    outcome = summarise(runs, plan.arms, target, conditions.link, target_reason=reason)
    facts = {
        "command": shlex.join(["python", *sys.argv]),
        "each worker": shlex.join(["python", *(Path(w).name if "/" in w else w for w in plan.command[1:])]),
        "workers": f"{plan.workers}, no servers",
        "link": conditions.link,
        "seeds": ", ".join(map(str, plan.seeds)) + "; arms interleaved, order rotated from seed to seed",
        "machine": ", ".join(f"{name} {value}" for name, value in machine_description().items()),
        "load of the machine": f"{load:.1f} before, {os.getloadavg()[0]:.1f} after",
        "took": f"{time.monotonic() - began:.0f} s",
        "gradwire": gradwire_version(),
    }
    show(outcome, write_page(plan.report, outcome, facts, warning), console)
    return Measured(outcome, facts, warning)


@dataclass(frozen=True)
class Grid:
    """What an experiment brings to its rows.

    Attributes:
        name: of the experiment, for messages.
        column: of a record that says which row it is of.
        rows: all there are, in the order of the tables.
        plan: what to run for a row.
        record: of a row that has ended; the column is among it.
        tables: of the records so far, as Markdown; "" where there is nothing to say yet.
    """

    name: str
    column: str
    rows: Sequence[str]
    plan: Callable[[str], Plan]
    record: Callable[[str, Measured], Record]
    tables: Callable[[list[Record]], str]

    def run(self, wanted: Sequence[str], folder: Path, json_file: str | None) -> int:
        """Measures rows, prints the tables of all that are known, and returns the exit code.

        Args:
            wanted: the rows; none: only the tables are printed.
            folder: of results.json.
            json_file: gets the records too; "-" is stdout, and then nothing else is.
        """
        console = Console(stderr=json_file == "-")
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "results.json"
        results = self._read(file)
        for row in wanted:
            console.print(f"\n{row}", style="bold")
            try:
                results[row] = self.record(row, measure(self.plan(row), console))
            except (RunFailed, Interrupted) as failure:
                say(f"{self.name}: {row}: {failure}")
                return failure.exit_code
            file.write_text(json.dumps(self._known(results), indent=1) + "\n")
        known = self._known(results)
        if json_file != "-" and (text := self.tables(known)):
            print(text)
        write_json(known, json_file)
        return 0

    def _read(self, file: Path) -> dict[str, Record]:
        return (
            {record[self.column]: record for record in json.loads(file.read_text())} if file.exists() else {}
        )

    def _known(self, results: Mapping[str, Record]) -> list[Record]:
        return [results[row] for row in self.rows if row in results]
