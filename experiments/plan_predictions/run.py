"""How near are `gradwire plan`'s predictions to measured steps? 3 models, 3 rates, 4 codecs, servers and peers.

    python experiments/plan_predictions/run.py                       all 72 cells, under 25 minutes on a quiet machine
    python experiments/plan_predictions/run.py --cells mlp-100mbit   those whose names begin so; repeatable
    python experiments/plan_predictions/run.py --tables              measures nothing: prints README.md's tables
    python experiments/plan_predictions/run.py --fit                 measures nothing: fits factors, one model left out

Parts: the costs of messages (calibration.json), a profile of each model (profiles/), a prediction of each cell, and
each cell itself. What is in the folder already is kept: a run that was stopped goes on where it was. --again forgets
it. The profile is that of `gradwire plan --copies 2`, the predictions are those of `gradwire plan --netlab`.

A cell is a job of two workers on hosts of their own (netlab, so root), with one server on a host of its own, or as
peers. It runs with the partition and the credit that its prediction is for.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from gradwire.autotune import step_times
from gradwire.autotune.launches import clock_variables
from gradwire.bench.hosts import Network
from gradwire.launch.child import Line
from gradwire.launch.supervisor import run_job
from gradwire.plan import calibration, layer_profile, simulation
from gradwire.settings.units import format_duration, parse_duration, parse_rate
from gradwire.terminal.machine import gradwire_version, machine_description

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from summary import COLUMNS, Cell, Factors, fit_table, folds, markdown  # noqa: E402

MODELS = ("lenet", "mlp", "transformer")
BANDWIDTHS = ("100mbit", "1gbit", "10gbit")
CODECS = ("none", "fp16", "int8", "2bit")
PLACEMENTS = {"servers": 1, "peers": 0}  # and how many servers
WORKERS = 2
LATENCY = "20us"  # of a netlab, which has no delay of its own
SECONDS = 4.5  # of timed steps in a cell, unless the fewest take longer
FEWEST_STEPS, MOST_STEPS = 10, 400
_DEADLINE = 600.0  # of a job


@dataclass(frozen=True)
class Name:
    model: str
    bandwidth: str
    codec: str
    placement: str

    def __str__(self) -> str:
        return f"{self.model}-{self.bandwidth}-{self.codec}-{self.placement}"


NAMES = tuple(Name(m, b, c, p) for m in MODELS for b in BANDWIDTHS for c in CODECS for p in PLACEMENTS)


@dataclass(frozen=True)
class Run:
    """What was asked for. folder: of results, calibration and profiles."""

    folder: Path
    seed: int
    steps: int | None  # of a cell; None: by its predicted time
    calibration: Path

    def train(self, model: str) -> list[str]:
        return [sys.executable, str(HERE / "train.py"), model, "--seed", str(self.seed)]

    def profile(self, model: str) -> Path:
        return self.folder / "profiles" / f"{model}.json"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def make_calibration(run: Run) -> None:
    """Takes the codecs' costs that come with gradwire, and measures here what messages and bytes cost."""
    say("calibration: messages over loopback")
    probe = calibration.probe_messages()
    known = calibration.load()
    made_by = f"{known.made_by}; messages: experiments/plan_predictions/run.py"
    run.calibration.write_text(replace(known, made_by=made_by, **probe).text(), encoding="utf-8")


def make_profile(run: Run, model: str) -> None:
    """Profiles a model with the workers of a machine at once, as `gradwire plan` does.

    Raises: RuntimeError: it failed.
    """
    say(f"{model}: profile of {WORKERS} copies")
    file = run.profile(model)
    file.parent.mkdir(parents=True, exist_ok=True)
    words = ["--copies", str(WORKERS), "--profile", str(file), "--", *run.train(model)]
    plan(run, BANDWIDTHS[0], words)
    profile = layer_profile.load(file)
    say(f"{model}: {format_duration(profile.compute_seconds)} of compute a step")
    if profile.warning is not None:
        say(f"{model}: WARNING: {profile.warning}")


def plan(run: Run, bandwidth: str, of: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the predictions of `gradwire plan` for all codecs and placements. of: its model or command.

    Raises: RuntimeError: it failed.
    """
    codecs = [word for codec in CODECS for word in ("--codec", codec)]
    places = [word for place in PLACEMENTS for word in ("--placement", place)]
    command = [
        *(sys.executable, "-m", "gradwire.cli", "plan", "-n", str(WORKERS), "-s", str(PLACEMENTS["servers"])),
        *("--bandwidth", bandwidth, "--latency", LATENCY, "--netlab", *codecs, *places),
        *("--calibration", str(run.calibration), "--json", "-", *of),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"plan_predictions: gradwire plan ended with exit code {done.returncode}: {done.stderr}"
        )
    predictions: list[dict[str, Any]] = json.loads(done.stdout)["predictions"]
    return predictions


def forget_settings() -> None:
    """Takes gradwire's settings out of this process's environment: a cell is what its name says."""
    for name in [name for name in os.environ if name.startswith("GRADWIRE_")]:
        del os.environ[name]


def prediction(run: Run, name: Name) -> dict[str, Any]:
    """Returns the prediction for one cell."""
    rows = _predictions(run, name.model, name.bandwidth)
    return next(row for row in rows if (row["codec"], row["placement"]) == (name.codec, name.placement))


@cache
def _predictions(run: Run, model: str, bandwidth: str) -> list[dict[str, Any]]:
    return plan(run, bandwidth, ["--model", str(run.profile(model))])


def steps_for(step_seconds: float) -> int:
    """Returns how many steps to time: SECONDS of them, but neither fewer nor more than say something."""
    return max(FEWEST_STEPS, min(MOST_STEPS, round(SECONDS / step_seconds)))


def measure(run: Run, name: Name) -> Cell:
    """Runs a cell's job and sets what it measured beside its prediction.

    Raises: RuntimeError: the job failed, or its store was another.
    """
    expected = prediction(run, name)
    steps = run.steps or steps_for(expected["step_seconds"])
    load = os.getloadavg()[0]
    times = launch(run, name, steps, expected)
    taken = sorted(times.seconds)
    cut = len(taken) // 10
    low, high = expected["step_seconds_interval"]
    return Cell(
        **vars(name),
        partition_bytes=expected["partition_bytes"],
        credit_bytes=expected["credit_bytes"],
        predicted=expected["step_seconds"],
        low=low,
        high=high,
        steps=len(taken),
        measured=statistics.median(taken),
        fast=taken[cut],
        slow=taken[-1 - cut],
        load_before=round(load, 1),
        load_after=round(os.getloadavg()[0], 1),
    )


def launch(run: Run, name: Name, steps: int, expected: dict[str, Any]) -> step_times.StepTimes:
    """Raises: RuntimeError: the job failed, or its store was another."""
    said: list[str] = []

    def remember(line: Line) -> None:
        said.append(f"{line.role} {line.rank}: {line.text}")

    servers = PLACEMENTS[name.placement]
    settings = {
        "GRADWIRE_COMPRESSION": name.codec,
        "GRADWIRE_PARTITION_BYTES": str(expected["partition_bytes"]),
        "GRADWIRE_CREDIT_BYTES": str(expected["credit_bytes"]),
        "GRADWIRE_CODEC_THREADS": "1",  # as plan has it by default
        "GRADWIRE_SERVER_THREADS": "1",
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // WORKERS)),
    }
    with (
        tempfile.TemporaryDirectory(prefix="gradwire-plan-predictions-") as folder,
        Network.open(WORKERS, servers, name.bandwidth, colocated=False) as network,
    ):
        result = run_job(
            run.train(name.model),
            WORKERS,
            servers,
            env=settings,
            worker_env=lambda rank: clock_variables(Path(folder), steps),
            placement=network.place,
            output=remember,
            timeout=_DEADLINE,
        )
        result.require_success(f"plan_predictions: {name}", said[-20:])
        times = step_times.read(Path(folder), WORKERS)
    store = "dist_sync" if servers else "allreduce"
    if times is None or times.store != store:
        found = None if times is None else times.store
        raise RuntimeError(f"plan_predictions: {name}: expected steps of the store {store}, found {found}")
    return times


def read(file: Path) -> dict[str, Cell]:
    if not file.exists():
        return {}
    with file.open(newline="", encoding="utf-8") as lines:
        cells = [Cell.of_row(row) for row in csv.DictReader(lines)]
    return {cell.name: cell for cell in cells}


def write(folder: Path, cells: dict[str, Cell], seed: int) -> None:
    """Writes the cells in the order of NAMES, whole or not at all, and beside them what they were measured on."""
    unfinished = folder / "results.csv.tmp"
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        lines.writeheader()
        lines.writerows(cells[str(name)].row() for name in NAMES if str(name) in cells)
    os.replace(unfinished, folder / "results.csv")
    facts = {"seed": seed, "gradwire": gradwire_version(), "machine": machine_description()}
    (folder / "machine.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def forget(run: Run, names: Sequence[Name], cells: dict[str, Cell]) -> None:
    """Takes cells out of the results, and the profile of a model of which none is left: cells of one share theirs."""
    for name in names:
        cells.pop(str(name), None)
    for model in {name.model for name in names} - {cell.model for cell in cells.values()}:
        run.profile(model).unlink(missing_ok=True)
    if (run.folder / "results.csv").exists():
        write(run.folder, cells, run.seed)


def measure_all(run: Run, names: Sequence[Name], cells: dict[str, Cell]) -> None:
    """Measures what is missing, part by part, and writes after each cell."""
    began = time.monotonic()
    run.folder.mkdir(parents=True, exist_ok=True)
    if not run.calibration.exists():
        make_calibration(run)
    for model in dict.fromkeys(name.model for name in names):
        if not run.profile(model).exists():
            make_profile(run, model)
    for number, name in enumerate(names, 1):
        cell = cells[str(name)] = measure(run, name)
        write(run.folder, cells, run.seed)
        say(
            f"{number} of {len(names)}, {format_duration(time.monotonic() - began)}: {name}: predicted "
            f"{format_duration(cell.predicted)}, measured {format_duration(cell.measured)} ({cell.error:+.1%}, "
            f"spread {cell.spread:.0%})"
        )


def predict_with(run: Run, cell: Cell, factors: Factors) -> float:
    """Returns the step that the simulator predicts with other costs and links, seconds."""
    network = simulation.Network(
        simulation.placement_of(cell.placement),
        WORKERS,
        PLACEMENTS[cell.placement],
        factors.rate * parse_rate(cell.bandwidth),
        parse_duration(LATENCY),
        netlab=True,
    )
    schedule = simulation.Schedule(partition_bytes=cell.partition_bytes, credit_bytes=cell.credit_bytes)
    costs = calibration.load(run.calibration).times(factors.costs)
    profile = layer_profile.find(str(run.profile(cell.model)))
    return simulation.predict(
        profile, network, simulation.Variant.parse(cell.codec), schedule, costs
    ).step_seconds


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--cells",
        action="append",
        metavar="PREFIX",
        help="cells whose names (MODEL-RATE-CODEC-PLACEMENT) begin so; repeatable; default: all",
    )
    add("--list", action="store_true", help="measure nothing, print the names of the chosen cells")
    add(
        "--again",
        action="store_true",
        help="forget the chosen cells first, and profiles of models of which no other cell is left",
    )
    add(
        "--steps",
        type=int,
        metavar="N",
        help=f"timed steps of a cell (default: about {SECONDS:g} s of them)",
    )
    add("--seed", type=int, default=0, help="of weights and inputs (default: 0)")
    add("--calibration", type=Path, metavar="FILE", help="costs to predict from (default: measured here)")
    add("--folder", type=Path, default=HERE, metavar="DIR", help="of results (default: beside this script)")
    add("--tables", action="store_true", help="measure nothing, print README.md's tables")
    add("--fit", action="store_true", help="measure nothing, print what factors would have predicted better")
    given = parser.parse_args()
    prefixes = tuple(given.cells or [""])
    given.names = [name for name in NAMES if str(name).startswith(prefixes)]
    if not given.names:
        parser.error(f"--cells {', '.join(prefixes)}: no cell begins so; --list prints their names")
    if given.steps is not None and given.steps < 2:
        parser.error(f"--steps {given.steps} was given, expected 2 or more")
    return given


def main() -> int:
    given = parse_arguments()
    if given.list:
        print("\n".join(map(str, given.names)))
        return 0
    forget_settings()
    run = Run(given.folder, given.seed, given.steps, given.calibration or given.folder / "calibration.json")
    cells = read(run.folder / "results.csv")
    if given.again:
        forget(run, given.names, cells)
    if not given.tables and not given.fit:
        measure_all(run, [name for name in given.names if str(name) not in cells], cells)
    if not cells:
        print(
            f"plan_predictions: {run.folder} has no results.csv yet: run without --tables and --fit",
            file=sys.stderr,
        )
        return 1
    ordered = [cells[str(name)] for name in NAMES if str(name) in cells]
    if given.fit:
        print(fit_table(folds(ordered, lambda cell, factors: predict_with(run, cell, factors))))
    else:
        print(markdown(ordered))
    return 0


if __name__ == "__main__":
    sys.exit(main())
