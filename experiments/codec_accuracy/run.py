"""What does every codec cost in accuracy? All codecs, 4 workers, the same seeds, one run after the other.

    python experiments/codec_accuracy/run.py [--task lenet]... [--arm none --arm 2bit]... [--seeds 1] [--minutes M]
    python experiments/codec_accuracy/run.py --simulate [--task lenet]... [--arm 2bit]... [--seeds 5] [--minutes M]
    python experiments/codec_accuracy/run.py --relative-error [--arm 2bit]... [--limit 3200] [--num-epochs 2]
    python experiments/codec_accuracy/run.py --sensitivity [--arm 2bit]... [--seeds 1] [--minutes M]
    python experiments/codec_accuracy/run.py --tables      measures nothing: fills README.md, draws every chart

The first runs real jobs, which tell bytes and codec seconds too; the second the same training with simulated workers, a
process each, at a third of the cost; the next two LeNet so in this process. Every run is kept in results.csv,
simulated.csv or sensitivity.csv as it ends, and is not done again: stopped or cut short, the same command goes on
where it was; --relative-error measures again. A job's output is in report/codec_accuracy/TASK/.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import accuracy_table
import relative_error
import sensitivity
import simulated
from arms import check, every_arm
from runs import TASKS, Kept, Row, Run, RunFailed, append, carry_out, missing, read
from simulated import Simulated

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from training import readme  # noqa: E402

if TYPE_CHECKING:
    from training.task import Task

LEAST_LIMIT = 320  # images of simulated workers: some steps
POINT_STEPS = 5  # of training, that a point of relative_error.csv is the mean of


def measure(to_do: Sequence[Run], file: Path, minutes: float | None) -> list[Run]:
    """Does the runs, of which none starts after minutes; returns those that failed.

    Raises:
        RunFailed: a signal stopped one.
    """
    began = time.monotonic()
    failed = []
    for number, run in enumerate(to_do, start=1):
        spent = time.monotonic() - began
        if minutes is not None and spent > 60 * minutes:
            say(
                f"{minutes:g} minutes are over, {len(to_do) - number + 1} runs are left: the same command goes on"
            )
            break
        try:
            row = carry_out(run)
        except RunFailed as error:
            say(*(f"  | {line}" for line in error.last_lines), str(error))
            if error.interrupted is not None:
                raise
            failed.append(run)
            continue
        append(file, row)
        left = (time.monotonic() - began) / number * (len(to_do) - number)
        say(f"{number}/{len(to_do)} {describe(row)}, {row.wall_seconds:.1f} s; {left / 60:.0f} min left")
    return failed


def simulate(to_do: Sequence[Run], file: Path, jobs: Sequence[Row], minutes: float | None) -> None:
    """Does the runs with simulated workers, of which none starts after minutes; says where the weights are a job's."""
    began, done = time.monotonic(), 0
    of_jobs = {(row.task, row.arm, row.seed): row.weights for row in jobs}

    def keep(run: Simulated) -> None:
        nonlocal done
        done += 1
        append(file, run)
        known = of_jobs.get((run.task, run.arm, run.seed))
        compared = {None: "", True: ", the weights of the job", False: ", not the weights of the job"}
        same = compared[None if known is None else known == run.weights]
        left = (time.monotonic() - began) / done * (len(to_do) - done)
        say(f"{done}/{len(to_do)} {describe(run)}{same}, {run.cpu_seconds:.1f} s; {left / 60:.0f} min left")

    left = simulated.measure(to_do, minutes, keep)
    if left > 0:
        say(f"{minutes:g} minutes are over, {left} runs are left: the same command goes on")


def describe(row: Kept) -> str:
    score = f"loss {row.score:.4f}" if row.metric == "loss" else f"accuracy {100 * row.score:.2f} %"
    return f"{row.task} {row.arm} seed {row.seed}: {score}"


def say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def measure_errors(arms: Sequence[str], limit: int, num_epochs: int, file: Path) -> None:
    """Trains LeNet under each arm, watching what each step loses; keeps an arm's points as it ends."""
    from simulation import Setting, load_task, train

    length = relative_error.Length(limit, num_epochs)
    relative_error.check_length(file, length, arms)
    task = load_task(Setting(arms[0], 0, limit, num_epochs))
    names = layers_of(task)
    for arm in arms:
        began = time.monotonic()
        recorder = relative_error.Recorder(arm, length, names, POINT_STEPS)
        train(Setting(arm, 0, limit, num_epochs), task, recorder)
        relative_error.write(file, recorder.points)
        say(f"{arm}: {time.monotonic() - began:.1f} s")


def layers_of(task: Task) -> dict[int, tuple[str, int]]:
    """Returns name and elements of what codecs compress: all parameters but those of one dimension."""
    parameters = enumerate(task.model().named_parameters())
    return {index: (name, p.numel()) for index, (name, p) in parameters if p.dim() > 1}


def measure_sensitivity(points: Sequence[sensitivity.Point], file: Path, minutes: float | None) -> None:
    """Trains LeNet at each point; none starts after minutes."""
    from simulation import Setting, load_task, train

    began = time.monotonic()
    task = None
    for number, point in enumerate(points, start=1):
        if minutes is not None and time.monotonic() - began > 60 * minutes:
            say(f"{minutes:g} minutes are over, {len(points) - number + 1} points are left")
            return
        setting = Setting(point.arm, point.seed, point.limit, point.num_epochs, point.lr_factor)
        task = task or load_task(setting)
        accuracy = task.score(train(setting, task))
        sensitivity.append(file, point, accuracy)
        left = (time.monotonic() - began) / number * (len(points) - number)
        say(
            f"{number}/{len(points)} {point.arm}, learning rate times {point.lr_factor:g}, seed {point.seed}: "
            f"{100 * accuracy:.2f} %; {left / 60:.0f} min left"
        )


def write_tables(folder: Path, wanted: Sequence[str]) -> None:
    """Prints the tables and draws the charts of what was measured; fills README.md if it is beside them."""
    for name, (text, charts) in sections(folder).items():
        if name not in wanted:
            continue
        print(f"{text}\n")
        for file, chart in charts.items():
            (folder / file).write_text(chart, encoding="utf-8")
        if folder == HERE:
            images = [f"![{name}: {file}]({file})" for file in charts]
            readme.fill(name, "\n\n".join([text, *images]), HERE / "README.md")


def sections(folder: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """Returns, by its mark in README.md, the text and the charts of each part that was measured."""
    found: dict[str, tuple[str, dict[str, str]]] = {}
    jobs, runs = read(folder / "results.csv", Row), read(folder / "simulated.csv", Simulated)
    if tasks := accuracy_table.by_task(jobs, runs):
        text = "\n\n".join(accuracy_table.markdown(task) for task in tasks)
        found["accuracy"] = (text, {"results.svg": accuracy_table.draw(tasks)})
    if points := relative_error.read(folder / "relative_error.csv"):
        chart = relative_error.figure(points)
        found["relative error"] = (relative_error.markdown(points), {"relative_error.svg": chart})
    if results := sensitivity.read(folder / "sensitivity.csv"):
        sweep = sensitivity.summarise(results)
        found["sensitivity"] = (sensitivity.markdown(sweep), sensitivity.figures(sweep))
    return found


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--task", action="append", choices=list(TASKS), help="repeatable; default: all")
    add("--arm", action="append", metavar="CODEC", help="repeatable; default: every codec, and PowerSGD")
    add("--seeds", type=int, metavar="N", help="0 to N-1 (default: 1, of --simulate 5)")
    add("--minutes", type=float, metavar="M", help="start no run after so long; default: all are done")
    add("--folder", type=Path, default=HERE, help="where results are (default: beside this script)")
    add(
        "--limit",
        type=int,
        default=3200,
        metavar="N",
        help="images of simulated workers (default: %(default)s)",
    )
    add("--num-epochs", type=int, default=2, metavar="N", help="of simulated workers (default: %(default)s)")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--simulate", action="store_true", help="every arm and seed with simulated workers")
    modes.add_argument("--relative-error", action="store_true", help="what each step loses, per layer")
    modes.add_argument("--sensitivity", action="store_true", help="learning rates and thresholds")
    modes.add_argument(
        "--tables", action="store_true", help="measure nothing: print tables, fill README.md, draw"
    )
    given = parser.parse_args()
    if given.seeds is None:
        given.seeds = 5 if given.simulate else 1
    for name, least in (("seeds", 1), ("num_epochs", 1), ("limit", LEAST_LIMIT)):
        if getattr(given, name) < least:
            parser.error(
                f"--{name.replace('_', '-')} {getattr(given, name)} was given, expected {least} or more"
            )
    try:
        check(given.arm or [])
    except ValueError as error:
        parser.error(str(error))
    return given


def measure_scores(given: argparse.Namespace, folder: Path) -> list[Run]:
    """Does the jobs or the simulated runs that are missing; returns those that failed."""
    jobs = read(folder / "results.csv", Row)
    done: Sequence[Kept] = read(folder / "simulated.csv", Simulated) if given.simulate else jobs
    to_do = list(missing(given.task or list(TASKS), given.arm or every_arm(), given.seeds, done))
    if not given.simulate:
        return measure(to_do, folder / "results.csv", given.minutes)
    simulate(to_do, folder / "simulated.csv", jobs, given.minutes)
    return []


def main() -> int:
    given = parse_arguments()
    folder = given.folder.resolve()
    failed: list[Run] = []
    wanted = ["accuracy"]
    try:
        if given.tables:
            wanted = ["accuracy", "relative error", "sensitivity"]
        elif given.relative_error:
            wanted = ["relative error"]
            arms = given.arm or every_arm()
            measure_errors(arms, given.limit, given.num_epochs, folder / "relative_error.csv")
        elif given.sensitivity:
            wanted = ["sensitivity"]
            file = folder / "sensitivity.csv"
            done = sensitivity.read(file)
            points = sensitivity.plan(
                given.arm or sensitivity.lr_arms(), given.seeds, given.limit, given.num_epochs
            )
            measure_sensitivity([point for point in points if point not in done], file, given.minutes)
        else:
            failed = measure_scores(given, folder)
    except ValueError as error:
        say(f"{error}")
        return 2
    except RunFailed as error:
        return 128 + (error.interrupted or 0)
    write_tables(folder, wanted)
    for run in failed:
        say(f"FAILED: {run.task} {run.arm} seed {run.seed}: {run.log()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
